-- name: policies_list
-- What signers may do; a signer without a row may do everything.
SELECT chain_id, signer, receivers, selectors, value_wei_max::text AS value_wei_max, daily_wei_max::text AS daily_wei_max
  FROM signer_policy
 LIMIT 100000

-- name: policy_put
-- Sets what a signer may do, and who decided it.
-- unfenced: no record of the signer's sequence
WITH put AS (
  INSERT INTO signer_policy (chain_id, signer, receivers, selectors, value_wei_max, daily_wei_max)
  VALUES ($1, $2, $3, $4, $5::text::numeric, $6::text::numeric)
      ON CONFLICT (chain_id, signer) DO UPDATE
     SET receivers = excluded.receivers, selectors = excluded.selectors, value_wei_max = excluded.value_wei_max,
         daily_wei_max = excluded.daily_wei_max, updated_at = clock_timestamp()
  RETURNING chain_id, signer, receivers, selectors, value_wei_max, daily_wei_max
), audited AS (
  INSERT INTO audit (actor, key_id, action, chain_id, signer, detail, node)
  SELECT $7, $8, 'policy.put', chain_id, signer,
         jsonb_build_object('receivers', receivers, 'selectors', selectors,
                            'valueWeiMax', value_wei_max::text, 'dailyWeiMax', daily_wei_max::text), $9
    FROM put
)
SELECT signer FROM put

-- name: policy_remove
-- From now on the signer may do everything again.
-- unfenced: no record of the signer's sequence
WITH gone AS (
  UPDATE signer_policy
     SET receivers = NULL, selectors = NULL, value_wei_max = NULL, daily_wei_max = NULL,
         updated_at = clock_timestamp()
   WHERE chain_id = $1 AND signer = $2
  RETURNING chain_id, signer
), audited AS (
  INSERT INTO audit (actor, key_id, action, chain_id, signer, node)
  SELECT $3, $4, 'policy.remove', chain_id, signer, $5 FROM gone
)
SELECT signer FROM gone

-- name: spend_take
-- Takes wei of a signer's day if they are left; no row means that they are not.
-- unfenced: a budget, not a record of the signer's sequence; what is taken too much is only unused
INSERT INTO signer_spend AS s (chain_id, signer, day, spent_wei)
SELECT $1, $2, (clock_timestamp() AT TIME ZONE 'UTC')::date, $3::text::numeric
 WHERE $3::text::numeric <= $4::text::numeric
    ON CONFLICT (chain_id, signer, day) DO UPDATE
   SET spent_wei = s.spent_wei + excluded.spent_wei
 WHERE s.spent_wei + excluded.spent_wei <= $4::text::numeric
RETURNING day

-- name: spend_give_back
-- Gives back what a request did not need after all.
-- unfenced: a budget, not a record of the signer's sequence
UPDATE signer_spend
   SET spent_wei = greatest(0, spent_wei - $3::text::numeric)
 WHERE chain_id = $1 AND signer = $2 AND day = $4
RETURNING day

-- name: spend_today
-- What a signer's requests have taken today.
SELECT spent_wei::text
  FROM signer_spend
 WHERE chain_id = $1 AND signer = $2 AND day = (clock_timestamp() AT TIME ZONE 'UTC')::date

-- name: policies_list
-- List the spending policies; a signer without a row has no limits.
SELECT chain_id, signer, receivers, selectors, value_wei_max::text AS value_wei_max, daily_wei_max::text AS daily_wei_max,
       gas_max::text AS gas_max, fee_cap_max::text AS fee_cap_max
  FROM signer_policy
 LIMIT 100000

-- name: policy_put
-- Set a signer's spending policy, with its audit row.
-- unfenced: not part of the signer's nonce sequence
WITH put AS (
  INSERT INTO signer_policy (chain_id, signer, receivers, selectors, value_wei_max, daily_wei_max, gas_max, fee_cap_max)
  VALUES ($1, $2, $3, $4, $5::text::numeric, $6::text::numeric, $7::text::numeric, $8::text::numeric)
      ON CONFLICT (chain_id, signer) DO UPDATE
     SET receivers = excluded.receivers, selectors = excluded.selectors, value_wei_max = excluded.value_wei_max,
         daily_wei_max = excluded.daily_wei_max, gas_max = excluded.gas_max, fee_cap_max = excluded.fee_cap_max,
         updated_at = clock_timestamp()
  RETURNING chain_id, signer, receivers, selectors, value_wei_max, daily_wei_max, gas_max, fee_cap_max
), audited AS (
  INSERT INTO audit (actor, key_id, action, chain_id, signer, detail, node)
  SELECT $9, $10, 'policy.put', chain_id, signer,
         jsonb_build_object('receivers', receivers, 'selectors', selectors,
                            'valueWeiMax', value_wei_max::text, 'dailyWeiMax', daily_wei_max::text,
                            'gasMax', gas_max::text, 'feeCapMax', fee_cap_max::text), $11
    FROM put
)
SELECT signer FROM put

-- name: policy_remove
-- Remove all limits of a signer's spending policy, with an audit row.
-- unfenced: not part of the signer's nonce sequence
WITH gone AS (
  UPDATE signer_policy
     SET receivers = NULL, selectors = NULL, value_wei_max = NULL, daily_wei_max = NULL, gas_max = NULL,
         fee_cap_max = NULL, updated_at = clock_timestamp()
   WHERE chain_id = $1 AND signer = $2
  RETURNING chain_id, signer
), audited AS (
  INSERT INTO audit (actor, key_id, action, chain_id, signer, node)
  SELECT $3, $4, 'policy.remove', chain_id, signer, $5 FROM gone
)
SELECT signer FROM gone

-- name: spend_reserve
-- Reserve what a transaction may cost in its signer's daily budget; false, with nothing reserved, if too little is left.
-- unfenced: a budget, not part of the signer's nonce sequence; a reservation that is too large only leaves budget unused
SELECT spend_reserve($1, $2, $3, $4::text::numeric, $5::text::numeric, $6)

-- name: spend_settle
-- Record what transactions cost; return the rest of their reservations to the daily budgets.
-- unfenced: a budget, not part of the signer's nonce sequence
SELECT count(*) FILTER (WHERE spend_settle($1, $2, e.tx_id, e.cost))
  FROM (SELECT unnest($3::uuid[]) AS tx_id, unnest($4::text[]::numeric[]) AS cost) e

-- name: spend_ended
-- List ended transactions of a signer with an open reservation, and the columns from which their cost is computed.
SELECT s.tx_id, s.value_wei::text AS value_wei, s.wei::text AS wei, t.block_hash IS NOT NULL AS is_mined, t.receipt,
       a.purpose, a.fee_cap_wei::text AS fee_cap_wei
  FROM tx_spend s
  JOIN managed_tx t ON t.tx_id = s.tx_id AND NOT t.is_live
  LEFT JOIN tx_attempt a ON a.tx_hash = t.tx_hash AND a.chain_id = t.chain_id
 WHERE s.chain_id = $1 AND s.signer = $2 AND NOT s.is_settled
 LIMIT $3

-- name: spend_today
-- Read how much of today's budget (UTC) a signer's transactions have reserved or spent.
SELECT spent_wei::text
  FROM signer_spend
 WHERE chain_id = $1 AND signer = $2 AND day = (clock_timestamp() AT TIME ZONE 'UTC')::date

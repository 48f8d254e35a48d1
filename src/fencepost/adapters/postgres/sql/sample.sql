-- name: sample_live
-- Count the live transactions of each signer by state and API key; rows without a state list signers with open operator commands.
-- There may be thousands of signers, so they are returned in arrays, which cost less than rows. A signer appears once per API key
-- that has requests for it.
SELECT chain_id, state, key_id, array_agg(signer::text) AS signers, array_agg(count) AS counts
  FROM (SELECT chain_id, signer, state, key_id, count(*) AS count
          FROM managed_tx
         WHERE is_live
         GROUP BY chain_id, signer, state, key_id) live
 GROUP BY chain_id, state, key_id
 UNION ALL
SELECT chain_id, NULL, NULL, array_agg(signer::text), NULL
  FROM (SELECT DISTINCT chain_id, signer
          FROM lane_command
         WHERE done_at IS NULL
         LIMIT 10000) asked
 GROUP BY chain_id

-- name: sample_cluster
-- Count signers by state and live transactions by sub-state; read the age of the oldest transactions, and how many signers with
-- work no node holds.
WITH live AS (
  SELECT chain_id, signer, state, sub_state, nonce, created_at, receipt IS NOT NULL AS is_mined
    FROM managed_tx
   WHERE is_live
), counted AS (
  SELECT count(*) FILTER (WHERE state = 'ACTIVE' AND pause IS NULL) AS active,
         count(*) FILTER (WHERE state = 'ACTIVE' AND pause IS NOT NULL) AS paused,
         count(*) FILTER (WHERE state = 'PROTECT') AS protected
    FROM signer_nonce_cursor
)
SELECT counted.active, counted.paused, counted.protected,
       (SELECT count(*) FROM (SELECT DISTINCT chain_id, signer FROM live WHERE state <> 'SUSPENDED') busy
         WHERE NOT EXISTS (SELECT FROM signer_lease l
                            WHERE l.chain_id = busy.chain_id AND l.signer = busy.signer
                              AND l.expires_at > clock_timestamp())) AS without_lease,
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8
          FROM live WHERE state = 'QUEUED') AS oldest_queued_s,
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8
          FROM live WHERE nonce IS NOT NULL AND NOT is_mined) AS oldest_in_flight_s,
       (SELECT array_agg(sub_state::text) FROM live WHERE sub_state IS NOT NULL) AS sub_states
  FROM counted

-- name: soonest_expiry
-- Read the number of seconds until the first lease of another process expires, unless it is renewed.
SELECT extract(epoch FROM min(expires_at) - clock_timestamp())::float8
  FROM signer_lease
 WHERE expires_at > clock_timestamp() AND incarnation <> $1

-- name: sample_live
-- How many live transactions each signer has in which state; without a state, signers of whom people ask something
-- that nobody answered yet. Signers come by the thousand: side by side in arrays, which cost less than rows.
SELECT chain_id, state, array_agg(signer::text) AS signers, array_agg(count) AS counts
  FROM (SELECT chain_id, signer, state, count(*) AS count
          FROM managed_tx
         WHERE is_live
         GROUP BY chain_id, signer, state) live
 GROUP BY chain_id, state
 UNION ALL
SELECT chain_id, NULL, array_agg(signer::text), NULL
  FROM (SELECT DISTINCT chain_id, signer
          FROM lane_command
         WHERE done_at IS NULL
         LIMIT 10000) asked
 GROUP BY chain_id

-- name: soonest_expiry
-- Seconds until the first lease of another process runs out, unless it is renewed.
SELECT extract(epoch FROM min(expires_at) - clock_timestamp())::float8
  FROM signer_lease
 WHERE expires_at > clock_timestamp() AND incarnation <> $1

-- name: sample_live
-- How many live transactions each signer has in which state; without a state, signers of whom people ask something
-- that nobody answered yet.
SELECT chain_id, signer, state, count(*) AS count
  FROM managed_tx
 WHERE is_live
 GROUP BY chain_id, signer, state
 UNION ALL
(SELECT DISTINCT chain_id, signer, NULL, 0
   FROM lane_command
  WHERE done_at IS NULL
  LIMIT 10000)

-- name: soonest_expiry
-- Seconds until the first lease of another process runs out, unless it is renewed.
SELECT extract(epoch FROM min(expires_at) - clock_timestamp())::float8
  FROM signer_lease
 WHERE expires_at > clock_timestamp() AND incarnation <> $1

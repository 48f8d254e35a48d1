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

-- name: soonest_expiry
-- Read the number of seconds until the first lease of another process expires, unless it is renewed.
SELECT extract(epoch FROM min(expires_at) - clock_timestamp())::float8
  FROM signer_lease
 WHERE expires_at > clock_timestamp() AND incarnation <> $1

-- name: ask_with_audit
-- Stores what a person asks of a lane, and who it was, in one.
-- unfenced: a wish; the lane carries it out under its lease
WITH asked AS (
  INSERT INTO lane_command (chain_id, signer, tx_id, command, detail, asked_by, reason)
  VALUES ($1, $2, $3, $4, $5::jsonb, $6, $7)
  RETURNING id
), audited AS (
  INSERT INTO audit (actor, key_id, action, chain_id, signer, tx_id, command_id, reason, detail, node)
  SELECT $6, $8, $9, $1, $2, $3, id, $7, $5::jsonb, $10 FROM asked
)
SELECT id FROM asked

-- name: key_insert
-- A new key of a caller, and who made it.
-- unfenced: no signer's record
WITH made AS (
  INSERT INTO api_key (id, name, secret_hash, scopes, signers, rate_per_s)
  VALUES ($1, $2, $3, $4, $5, $6)
  RETURNING id, name, scopes, signers, rate_per_s, created_at, revoked_at
), audited AS (
  INSERT INTO audit (actor, action, detail, node)
  SELECT $7, 'key.create', jsonb_build_object('key', id, 'name', name, 'scopes', scopes), $8 FROM made
)
SELECT * FROM made

-- name: key_revoke
-- From now on this key opens nothing; revoking it twice changes nothing.
-- unfenced: no signer's record
WITH gone AS (
  UPDATE api_key
     SET revoked_at = clock_timestamp()
   WHERE id = $1 AND revoked_at IS NULL
  RETURNING id, name
), audited AS (
  INSERT INTO audit (actor, action, detail, node)
  SELECT $2, 'key.revoke', jsonb_build_object('key', id, 'name', name), $3 FROM gone
)
SELECT id FROM gone

-- name: keys_list
-- All keys, newest first.
SELECT id, name, scopes, signers, rate_per_s, created_at, revoked_at
  FROM api_key
 ORDER BY created_at DESC, id
 LIMIT 10000

-- name: key_find
-- One key that stands, with the hash to compare.
SELECT id, name, secret_hash, scopes, signers, rate_per_s, created_at, revoked_at
  FROM api_key
 WHERE id = $1 AND revoked_at IS NULL

-- name: keys_exist
-- Whether any key stands.
SELECT EXISTS (SELECT 1 FROM api_key WHERE revoked_at IS NULL)

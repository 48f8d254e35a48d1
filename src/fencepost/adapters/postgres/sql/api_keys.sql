-- name: key_insert
-- Store a new API key with its audit row.
-- unfenced: no signer's record
WITH inserted AS (
  INSERT INTO api_key (id, name, secret_hash, scopes, signers, rate_per_s)
  VALUES ($1, $2, $3, $4, $5, $6)
  RETURNING id, name, scopes, signers, rate_per_s, created_at, revoked_at
), audited AS (
  INSERT INTO audit (actor, action, detail, node)
  SELECT $7, 'key.create', jsonb_build_object('key', id, 'name', name, 'scopes', scopes), $8 FROM inserted
)
SELECT * FROM inserted

-- name: key_revoke
-- Revoke an API key. The last admin key is revoked only if $4 is true; a key with fewer signers does not replace one with more.
-- The rows of all admin keys are locked first: if two are revoked at the same time, the second is recognized as the last.
-- unfenced: no signer's record
WITH admins AS MATERIALIZED (
  SELECT id, signers FROM api_key
   WHERE revoked_at IS NULL AND 'admin' = ANY (scopes)
   ORDER BY id
     FOR UPDATE
), last_admin AS (
  SELECT a.id FROM admins a
   WHERE a.id = $1
     AND NOT EXISTS (SELECT 1 FROM admins o WHERE o.id <> a.id AND (o.signers IS NULL OR a.signers IS NOT NULL))
), revoked AS (
  UPDATE api_key
     SET revoked_at = clock_timestamp()
   WHERE id = $1 AND revoked_at IS NULL AND ($4 OR NOT EXISTS (SELECT 1 FROM last_admin))
  RETURNING id, name
), audited AS (
  INSERT INTO audit (actor, action, detail, node)
  SELECT $2, 'key.revoke', jsonb_build_object('key', id, 'name', name), $3 FROM revoked
)
SELECT CASE WHEN EXISTS (SELECT 1 FROM revoked) THEN 'revoked'
            WHEN EXISTS (SELECT 1 FROM last_admin) THEN 'last_admin'
            ELSE 'unknown' END

-- name: keys_list
-- List all API keys, newest first.
SELECT id, name, scopes, signers, rate_per_s, created_at, revoked_at
  FROM api_key
 ORDER BY created_at DESC, id
 LIMIT 10000

-- name: key_find
-- Load an API key that is not revoked, with the hash of its secret.
SELECT id, name, secret_hash, scopes, signers, rate_per_s, created_at, revoked_at
  FROM api_key
 WHERE id = $1 AND revoked_at IS NULL

-- name: keys_exist
-- Say whether an API key was ever created, revoked or not: once one exists, every node requires a key.
SELECT EXISTS (SELECT 1 FROM api_key)

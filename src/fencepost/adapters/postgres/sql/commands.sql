-- name: command_lock
-- Serialize commands for the same signer until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('fencepost command ' || $1::bigint || ' ' || $2::text, 0))

-- name: command_insert_audited
-- Store an operator command together with its audit row. If the newest open command for the same transaction or signer is the
-- same, return that one and store nothing. An applied cancel is never undone, so it also stands for every later cancel of its
-- transaction: the lane may run the first of several parallel ones before the others are stored. The transaction must run
-- `command_lock` first.
-- unfenced: a command changes nothing by itself; the lane runs it under its lease
WITH newest AS (
  SELECT id, command, detail
    FROM lane_command
   WHERE chain_id = $1 AND signer = $2 AND tx_id IS NOT DISTINCT FROM $3 AND done_at IS NULL
   ORDER BY id DESC
   LIMIT 1
), standing AS (
  SELECT min(id) AS id FROM lane_command
   WHERE $4 = 'cancel' AND tx_id = $3 AND command = 'cancel' AND applied AND chain_id = $1 AND signer = $2
), same AS (
  SELECT id FROM standing WHERE id IS NOT NULL
   UNION ALL
  SELECT newest.id FROM newest, standing WHERE standing.id IS NULL AND command = $4 AND detail = $5::jsonb
), inserted AS (
  INSERT INTO lane_command (chain_id, signer, tx_id, command, detail, author, reason)
  SELECT $1, $2, $3, $4, $5::jsonb, $6, $7 WHERE NOT EXISTS (SELECT 1 FROM same)
  RETURNING id
), audited AS (
  INSERT INTO audit (actor, key_id, action, chain_id, signer, tx_id, command_id, reason, detail, node)
  SELECT $6, $8, $9, $1, $2, $3, id, $7, $5::jsonb, $10 FROM inserted
)
SELECT id FROM inserted UNION ALL SELECT id FROM same

-- name: command_insert
-- Store an operator command.
-- unfenced: a command changes nothing by itself; the lane runs it under its lease
INSERT INTO lane_command (chain_id, signer, tx_id, command, detail, author, reason)
VALUES ($1, $2, $3, $4, $5::jsonb, $6, $7)
RETURNING id

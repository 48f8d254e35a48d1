-- name: lease_insert_missing
-- Insert the lease row of signers that have none; rows are never deleted.
-- unfenced: a new row grants no lease
-- Every node inserts in the same order, so that two nodes with the same new signers can't deadlock.
INSERT INTO signer_lease (chain_id, signer, owner_node, incarnation, fencing_token, acquired_at, expires_at)
SELECT w.chain_id, w.signer, '', '00000000-0000-0000-0000-000000000000', 0, clock_timestamp(), '-infinity'
  FROM unnest($1::bigint[], $2::text[]) AS w (chain_id, signer)
 ORDER BY w.chain_id, w.signer
    ON CONFLICT DO NOTHING

-- name: lease_acquire
-- Acquire leases that are free, expired or held by this process: each begins a new term with a larger token.
-- unfenced: this statement creates the tokens
WITH free AS (
  SELECT s.chain_id, s.signer
    FROM signer_lease s
    JOIN unnest($1::bigint[], $2::text[]) AS w (chain_id, signer)
      ON s.chain_id = w.chain_id AND s.signer = w.signer
   WHERE s.incarnation = $4 OR s.expires_at + make_interval(secs => $6) < clock_timestamp()
   ORDER BY s.chain_id, s.signer
     FOR UPDATE OF s SKIP LOCKED
)
UPDATE signer_lease s
   SET owner_node = $3,
       incarnation = $4,
       -- A promoted replica or a copy may have lost the last tokens: its new history number makes every new token larger.
       fencing_token = greatest(s.fencing_token, $7::bigint << 32) + 1,
       acquired_at = clock_timestamp(),
       expires_at = clock_timestamp() + make_interval(secs => $5)
  FROM free
 WHERE s.chain_id = free.chain_id AND s.signer = free.signer
RETURNING s.chain_id, s.signer, s.fencing_token

-- name: lease_record_terms
-- Record the new terms with the snapshot in which they began. Runs after lease_acquire, in its transaction.
-- unfenced: an audit row of the term itself
INSERT INTO lease_term (chain_id, signer, fencing_token, owner_node, incarnation, acquired_at, sealed_snapshot)
SELECT s.chain_id, s.signer, s.fencing_token, s.owner_node, s.incarnation, s.acquired_at, pg_current_snapshot()
  FROM signer_lease s
  JOIN unnest($1::bigint[], $2::text[]) AS w (chain_id, signer)
    ON s.chain_id = w.chain_id AND s.signer = w.signer
 WHERE s.incarnation = $3

-- name: lease_forget_terms
-- Delete all but the newest $3 terms of signers. The lease row, which counts the tokens, stays.
-- unfenced: audit rows of terms that ended long ago
DELETE FROM lease_term t
 USING unnest($1::bigint[], $2::text[]) AS w (chain_id, signer)
 WHERE t.chain_id = w.chain_id AND t.signer = w.signer
   AND t.fencing_token <= (SELECT n.fencing_token
                             FROM lease_term n
                            WHERE n.chain_id = w.chain_id AND n.signer = w.signer
                            ORDER BY n.fencing_token DESC
                           OFFSET $3 LIMIT 1)

-- name: history_current
-- Read the newest recorded history if its identity is that of this database; no row if the identity differs.
SELECT max(h.history) AS history, max(h.epoch) AS epoch
  FROM database_history h
 CROSS JOIN database_identity i
 WHERE h.history = (SELECT max(history) FROM database_history)
HAVING bool_and((h.system_id, h.timeline, h.database_oid, h.table_oid)
                = (i.system_id, i.timeline, i.database_oid, i.table_oid))

-- name: history_begins
-- Record a new history unless the newest one has the identity of this database. Its number is above that of every issued token.
-- Nodes that start at the same time compute the same key: one of them inserts the row, and the others wait for it.
-- unfenced: no signer's record; the row never changes
WITH newest AS (
  SELECT h.history, h.system_id, h.timeline, h.database_oid, h.table_oid
    FROM database_history h
   WHERE h.history = (SELECT max(history) FROM database_history)
)
INSERT INTO database_history (history, epoch, system_id, timeline, database_oid, table_oid, is_copy)
SELECT greatest((SELECT max(history) FROM newest) + 1,
                i.timeline << 8,
                (SELECT max(s.fencing_token) >> 32 FROM signer_lease s) + 1),
       greatest((SELECT max(epoch) FROM database_history) + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint),
       i.system_id, i.timeline, i.database_oid, i.table_oid,
       NOT EXISTS (SELECT FROM newest)
       OR EXISTS (SELECT FROM newest n
                   WHERE (n.system_id, n.database_oid, n.table_oid) <> (i.system_id, i.database_oid, i.table_oid))
  FROM database_identity i
 WHERE NOT EXISTS (SELECT FROM newest)
    OR EXISTS (SELECT FROM newest n
                WHERE (n.system_id, n.timeline, n.database_oid, n.table_oid)
                      <> (i.system_id, i.timeline, i.database_oid, i.table_oid))
    ON CONFLICT DO NOTHING
RETURNING history, system_id, timeline, database_oid, is_copy

-- name: lease_renew
-- Renew all terms of a node in one statement; a term whose position is missing from the result is over.
-- fenced: by its token, which is never in SET
WITH renewed AS (
  UPDATE signer_lease s
     SET expires_at = clock_timestamp() + make_interval(secs => $4)
    FROM unnest($1::text::bigint[], $2::text::text[], $3::text::bigint[]) WITH ORDINALITY
         AS w (chain_id, signer, token, place)
   WHERE s.chain_id = w.chain_id AND s.signer = w.signer AND s.fencing_token = w.token
  RETURNING w.place
)
SELECT coalesce(array_agg(place), '{}') AS places FROM renewed

-- name: lease_release
-- Release leases, so that another node can acquire them without waiting for their expiry.
-- fenced: by its token, which is never in SET
UPDATE signer_lease s
   SET expires_at = '-infinity'
  FROM unnest($1::text::bigint[], $2::text::text[], $3::text::bigint[]) AS w (chain_id, signer, token)
 WHERE s.chain_id = w.chain_id AND s.signer = w.signer AND s.fencing_token = w.token
RETURNING s.chain_id, s.signer

-- name: signers_with_work
-- List signers with live transactions or open commands whose lease may be acquired, in order, after a given signer. The recursive
-- query jumps through the index from signer to signer.
WITH RECURSIVE live AS (
  (SELECT chain_id, signer
     FROM managed_tx
    WHERE is_live
      AND (chain_id, signer) > ($4::bigint, $5::text)
    ORDER BY chain_id, signer
    LIMIT 1)
   UNION ALL
  SELECT following.chain_id, following.signer
    FROM live
   CROSS JOIN LATERAL (
     SELECT t.chain_id, t.signer
       FROM managed_tx t
      WHERE t.is_live
        AND (t.chain_id, t.signer) > (live.chain_id, live.signer)
      ORDER BY t.chain_id, t.signer
      LIMIT 1) following
), busy AS (
  SELECT chain_id, signer FROM live
   UNION
  SELECT chain_id, signer FROM lane_command WHERE done_at IS NULL AND (chain_id, signer) > ($4, $5)
)
SELECT b.chain_id, b.signer
  FROM busy b
  LEFT JOIN signer_lease s ON s.chain_id = b.chain_id AND s.signer = b.signer
 WHERE b.chain_id = ANY ($1::bigint[])
   AND (s.signer IS NULL OR s.expires_at + make_interval(secs => $2) < clock_timestamp())
 ORDER BY b.chain_id, b.signer
 LIMIT $3

-- name: lease_owner
-- Find the node that holds, or last held, a signer's lease.
SELECT owner_node, fencing_token, expires_at > clock_timestamp() AS is_held
  FROM signer_lease
 WHERE chain_id = $1 AND signer = $2

-- name: signers_finished_since
-- List a page of signers with ended transactions at or above a block, by signer. Used only after a fork.
SELECT DISTINCT chain_id, signer
  FROM managed_tx
 WHERE chain_id = $1 AND block_number >= $2 AND NOT is_live AND signer > $3
 ORDER BY signer
 LIMIT $4

-- name: newest_ended_blocks
-- List the newest blocks below a number that contain ended transactions, with all hashes stored for each. The recursive query
-- jumps through the index from block to block.
WITH RECURSIVE ended AS (
  (SELECT block_number
     FROM managed_tx
    WHERE chain_id = $1 AND block_number < $3 AND NOT is_live
    ORDER BY block_number DESC
    LIMIT 1)
   UNION ALL
  SELECT lower.block_number
    FROM ended
   CROSS JOIN LATERAL (
     SELECT t.block_number
       FROM managed_tx t
      WHERE t.chain_id = $1 AND t.block_number < ended.block_number AND NOT t.is_live
      ORDER BY t.block_number DESC
      LIMIT 1) lower
)
SELECT t.block_number, t.block_hash
  FROM (SELECT block_number FROM ended LIMIT $2) newest
 CROSS JOIN LATERAL (
   SELECT DISTINCT q.block_number, q.block_hash
     FROM managed_tx q
    WHERE q.chain_id = $1 AND q.block_number = newest.block_number AND NOT q.is_live
   OFFSET 0 -- one index scan per block, whatever row count the planner estimates
 ) t
 ORDER BY t.block_number DESC, t.block_hash DESC

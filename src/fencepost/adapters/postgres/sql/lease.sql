-- name: lease_insert_missing
-- Makes sure that a signer has its one lease row; rows are never deleted.
-- unfenced: a new row grants nothing to anybody
-- In one order for all: two nodes that meet the same new signers wait for each other one way only.
INSERT INTO signer_lease (chain_id, signer, owner_node, incarnation, fencing_token, acquired_at, expires_at)
SELECT w.chain_id, w.signer, '', '00000000-0000-0000-0000-000000000000', 0, clock_timestamp(), '-infinity'
  FROM unnest($1::bigint[], $2::text[]) AS w (chain_id, signer)
 ORDER BY w.chain_id, w.signer
    ON CONFLICT DO NOTHING

-- name: lease_acquire
-- Takes what is free, expired or this process's own: always a new term with a larger token.
-- unfenced: this is where tokens come from
WITH free AS (
  SELECT s.chain_id, s.signer
    FROM signer_lease s
    JOIN unnest($1::bigint[], $2::text[]) AS w (chain_id, signer)
      ON s.chain_id = w.chain_id AND s.signer = w.signer
   WHERE s.incarnation = $4 OR s.expires_at + make_interval(secs => $6) < clock_timestamp()
   ORDER BY s.chain_id, s.signer
     FOR UPDATE OF s SKIP LOCKED
), timeline AS (
  -- A promoted replica may have lost the last tokens; its timeline is new, and so are the tokens it gives.
  SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint AS id
)
UPDATE signer_lease s
   SET owner_node = $3,
       incarnation = $4,
       fencing_token = greatest(s.fencing_token, timeline.id << 40) + 1,
       acquired_at = clock_timestamp(),
       expires_at = clock_timestamp() + make_interval(secs => $5)
  FROM free, timeline
 WHERE s.chain_id = free.chain_id AND s.signer = free.signer
RETURNING s.chain_id, s.signer, s.fencing_token

-- name: lease_record_terms
-- Writes down the new terms, with what was visible when they began. Runs after lease_acquire, in its transaction.
-- unfenced: an audit row of the term itself
INSERT INTO lease_term (chain_id, signer, fencing_token, owner_node, incarnation, acquired_at, sealed_snapshot)
SELECT s.chain_id, s.signer, s.fencing_token, s.owner_node, s.incarnation, s.acquired_at, pg_current_snapshot()
  FROM signer_lease s
  JOIN unnest($1::bigint[], $2::text[]) AS w (chain_id, signer)
    ON s.chain_id = w.chain_id AND s.signer = w.signer
 WHERE s.incarnation = $3

-- name: history_begins
-- The first term of a history says when it began. Runs after lease_acquire, in its transaction.
-- unfenced: a row that says when, and that nobody changes
INSERT INTO database_history (timeline) VALUES ($1) ON CONFLICT DO NOTHING

-- name: lease_renew
-- Prolongs all terms of a node in one statement; a term whose place is missing from the answer is over.
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
-- Lets go at once, so that another node need not wait for the end of the term.
-- fenced: by its token, which is never in SET
UPDATE signer_lease s
   SET expires_at = '-infinity'
  FROM unnest($1::text::bigint[], $2::text::text[], $3::text::bigint[]) AS w (chain_id, signer, token)
 WHERE s.chain_id = w.chain_id AND s.signer = w.signer AND s.fencing_token = w.token
RETURNING s.chain_id, s.signer

-- name: signers_with_work
-- Signers with live transactions or open commands whose lease may be taken, in order from a signer on; walks the index
-- from signer to signer.
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
-- Who holds a signer, if anybody does.
SELECT owner_node, fencing_token, expires_at > clock_timestamp() AS is_held
  FROM signer_lease
 WHERE chain_id = $1 AND signer = $2

-- name: signers_finished_since
-- Signers with ended transactions from a block on: asked for after a fork only. By block, not by chain: that is no index's.
SELECT DISTINCT chain_id, signer
  FROM managed_tx
 WHERE chain_id IS NOT DISTINCT FROM $1 AND block_number >= $2 AND state IN ('CONFIRMED', 'FAILED', 'CANCELLED')
 LIMIT 10000

-- name: newest_ended_blocks
-- The blocks that the last requests have ended in: asked for when a view of the chain begins, to see whether they stand.
-- By seq, not by chain: that is no index's.
SELECT DISTINCT t.block_number, t.block_hash
  FROM (SELECT block_number, block_hash
          FROM managed_tx
         WHERE chain_id IS NOT DISTINCT FROM $1 AND block_hash IS NOT NULL AND state IN ('CONFIRMED', 'FAILED', 'CANCELLED')
         ORDER BY seq DESC
         LIMIT $2) t
 ORDER BY t.block_number DESC

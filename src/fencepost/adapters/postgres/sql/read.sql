-- name: read_tx
-- Read one transaction by its id.
SELECT t.tx_id, t.chain_id, t.signer, t.request_id, t.kind, t.payload, t.valid_until, t.state, t.sub_state,
       t.nonce, t.ending, t.error, t.submit_count, t.tx_hash, t.block_number, t.block_hash,
       t.receipt IS NOT NULL AS is_mined, t.receipt,
       t.confirmations, t.tags, t.created_at, t.updated_at, t.finished_at,
       (SELECT c.reason FROM signer_nonce_cursor c
         WHERE c.chain_id = t.chain_id AND c.signer = t.signer AND c.state = 'PROTECT') AS protect_reason
  FROM managed_tx t
 WHERE t.tx_id = $1

-- name: read_txs
-- Read several transactions by their ids, without receipts.
SELECT t.tx_id, t.chain_id, t.signer, t.request_id, t.kind, t.payload, t.valid_until, t.state, t.sub_state,
       t.nonce, t.ending, t.error, t.submit_count, t.tx_hash, t.block_number, t.block_hash,
       t.receipt IS NOT NULL AS is_mined, NULL::json AS receipt,
       t.confirmations, t.tags, t.created_at, t.updated_at, t.finished_at,
       (SELECT c.reason FROM signer_nonce_cursor c
         WHERE c.chain_id = t.chain_id AND c.signer = t.signer AND c.state = 'PROTECT') AS protect_reason
  FROM managed_tx t
 WHERE t.tx_id = ANY ($1::uuid[])

-- name: read_tx_by_request
-- Read one transaction by its request id.
SELECT t.tx_id, t.chain_id, t.signer, t.request_id, t.kind, t.payload, t.valid_until, t.state, t.sub_state,
       t.nonce, t.ending, t.error, t.submit_count, t.tx_hash, t.block_number, t.block_hash,
       t.receipt IS NOT NULL AS is_mined, t.receipt,
       t.confirmations, t.tags, t.created_at, t.updated_at, t.finished_at,
       (SELECT c.reason FROM signer_nonce_cursor c
         WHERE c.chain_id = t.chain_id AND c.signer = t.signer AND c.state = 'PROTECT') AS protect_reason
  FROM managed_tx t
 WHERE t.chain_id = $1 AND t.signer = $2 AND t.request_id = $3

-- name: read_tx_by_hash
-- Read the transaction that has an attempt with this hash.
SELECT t.tx_id, t.chain_id, t.signer, t.request_id, t.kind, t.payload, t.valid_until, t.state, t.sub_state,
       t.nonce, t.ending, t.error, t.submit_count, t.tx_hash, t.block_number, t.block_hash,
       t.receipt IS NOT NULL AS is_mined, t.receipt,
       t.confirmations, t.tags, t.created_at, t.updated_at, t.finished_at,
       (SELECT c.reason FROM signer_nonce_cursor c
         WHERE c.chain_id = t.chain_id AND c.signer = t.signer AND c.state = 'PROTECT') AS protect_reason
  FROM tx_attempt a
  JOIN managed_tx t ON t.tx_id = a.tx_id
 WHERE a.chain_id = ANY ($1::bigint[]) AND a.tx_hash = $2

-- name: read_tx_page
-- Read a page of transactions, newest first, below a given id: ids increase with time.
SELECT t.tx_id, t.chain_id, t.signer, t.request_id, t.kind, t.payload, t.valid_until, t.state, t.sub_state,
       t.nonce, t.ending, t.error, t.submit_count, t.tx_hash, t.block_number, t.block_hash,
       t.receipt IS NOT NULL AS is_mined,
       CASE WHEN $9 THEN t.receipt END AS receipt, t.confirmations, t.tags, t.created_at, t.updated_at,
       t.finished_at,
       (SELECT c.reason FROM signer_nonce_cursor c
         WHERE c.chain_id = t.chain_id AND c.signer = t.signer AND c.state = 'PROTECT') AS protect_reason
  FROM managed_tx t
 WHERE t.tx_id < $1
   AND ($2::bigint IS NULL OR t.chain_id = $2)
   AND ($3::text[] IS NULL OR t.signer = ANY ($3))
   AND ($4::text[] IS NULL OR t.state = ANY ($4))
   AND ($5::text[] IS NULL OR t.sub_state = ANY ($5)
        OR ('PROTECT' = ANY ($5) AND t.is_live AND t.receipt IS NULL
            AND EXISTS (SELECT FROM signer_nonce_cursor c
                         WHERE c.chain_id = t.chain_id AND c.signer = t.signer AND c.state = 'PROTECT')))
   AND ($6::timestamptz IS NULL OR t.created_at >= $6)
   AND ($7::timestamptz IS NULL OR t.created_at < $7)
 ORDER BY t.tx_id DESC
 LIMIT $8

-- name: read_tx_page_tagged
-- Read a page of transactions that have all the given tags. A separate statement, so that it uses the index on tags.
SELECT t.tx_id, t.chain_id, t.signer, t.request_id, t.kind, t.payload, t.valid_until, t.state, t.sub_state,
       t.nonce, t.ending, t.error, t.submit_count, t.tx_hash, t.block_number, t.block_hash,
       t.receipt IS NOT NULL AS is_mined,
       CASE WHEN $9 THEN t.receipt END AS receipt, t.confirmations, t.tags, t.created_at, t.updated_at,
       t.finished_at,
       (SELECT c.reason FROM signer_nonce_cursor c
         WHERE c.chain_id = t.chain_id AND c.signer = t.signer AND c.state = 'PROTECT') AS protect_reason
  FROM managed_tx t
 WHERE t.tx_id < $1
   AND t.tags @> $10::text[] AND t.tags <> '{}'
   AND ($2::bigint IS NULL OR t.chain_id = $2)
   AND ($3::text[] IS NULL OR t.signer = ANY ($3))
   AND ($4::text[] IS NULL OR t.state = ANY ($4))
   AND ($5::text[] IS NULL OR t.sub_state = ANY ($5)
        OR ('PROTECT' = ANY ($5) AND t.is_live AND t.receipt IS NULL
            AND EXISTS (SELECT FROM signer_nonce_cursor c
                         WHERE c.chain_id = t.chain_id AND c.signer = t.signer AND c.state = 'PROTECT')))
   AND ($6::timestamptz IS NULL OR t.created_at >= $6)
   AND ($7::timestamptz IS NULL OR t.created_at < $7)
 ORDER BY t.tx_id DESC
 LIMIT $8

-- name: read_attempts
-- Read the attempts of transactions, oldest first, without the signed bytes.
SELECT a.tx_id, a.attempt, a.purpose, a.tx_type, a.gas, a.fee_cap_wei, a.tip_wei, a.tx_hash, a.created_at,
       a.fee_source, t.sends
  FROM managed_tx t
  JOIN tx_attempt a ON a.chain_id = t.chain_id AND a.signer = t.signer AND a.nonce = t.nonce AND a.tx_id = t.tx_id
 WHERE t.tx_id = ANY ($1::uuid[])
 ORDER BY a.tx_id, a.attempt

-- name: read_journal_of_tx
-- Read the newest journal events of a transaction, in order from old to new.
SELECT id, at, event, state, detail
  FROM (SELECT id, at, event, state, detail
          FROM journal
         WHERE id_prefix = left($1::uuid::text, 11) AND $1 = ANY (together) AND tx_id = $1
         ORDER BY id DESC
         LIMIT $2) newest
 ORDER BY id

-- name: read_last_fork_of_tx
-- Read the last fork that removed a transaction's block or confirmations.
SELECT at, detail
  FROM journal
 WHERE id_prefix = left($1::uuid::text, 11) AND $1 = ANY (together) AND tx_id = $1 AND event = 'Fork'
 ORDER BY id DESC
 LIMIT 1

-- name: read_totals_of_tx
-- Read a transaction's counters; they include repeated events that the journal does not store.
SELECT journal_count, submit_count, last_submit_at, updated_at, sends FROM managed_tx WHERE tx_id = $1

-- name: read_completions
-- Read the transactions that ended after a position in the order (epoch, xid, id). In the newest epoch no event can appear below
-- the oldest running database transaction; in older epochs no event can appear at all.
-- The position may lie inside a batch; the batch's own id is then at most 255 smaller.
SELECT j.epoch, j.xid::text AS xid, j.id, j.at, j.event, j.state, j.tx_id, j.chain_id, j.signer,
       t.request_id, t.nonce, t.tx_hash, CASE WHEN t.receipt IS NOT NULL THEN t.block_number END AS block_number,
       t.error, t.state AS state_now
  FROM (SELECT s.id AS batch, s.id + (tx.position - 1) * cardinality(s.events) + e.position - 1 AS id, s.epoch, s.xid,
               s.at, s.chain_id, s.signer, tx.tx_id, e.event, e.state
          FROM journal_batch s
         CROSS JOIN LATERAL unnest(s.tx_ids) WITH ORDINALITY AS tx (tx_id, position)
         CROSS JOIN LATERAL unnest(s.events, s.states) WITH ORDINALITY AS e (event, state, position)
         WHERE s.events && '{Finish,Refuse,Cancel,Lose}'::text[]
           AND (s.epoch, s.xid, s.id) > ($1::bigint, $2::text::xid8, $3::bigint - 256)
           AND (s.epoch, s.xid) < ((SELECT max(h.epoch) FROM database_history h), pg_snapshot_xmin(pg_current_snapshot()))
           AND ($4::text[] IS NULL OR s.signer = ANY ($4))) j
  JOIN managed_tx t ON t.tx_id = j.tx_id
 WHERE j.event IN ('Finish', 'Refuse', 'Cancel', 'Lose')
   AND (j.epoch, j.xid, j.id) > ($1::bigint, $2::text::xid8, $3::bigint)
 ORDER BY j.epoch, j.xid, j.batch, j.id -- batch by batch, so that PostgreSQL reads no more batches than the limit needs
 LIMIT $5

-- name: read_signers
-- Read a page of signers by chain and address: those that the caller names, and all that ever had a lease or a cursor.
WITH named AS (
  SELECT chain_id, signer FROM unnest($1::bigint[], $2::text[]) AS k (chain_id, signer)
   UNION
  SELECT chain_id, signer FROM signer_lease
   UNION
  SELECT chain_id, signer FROM signer_nonce_cursor
), page AS (
  SELECT chain_id, signer
    FROM named
   WHERE (chain_id, signer) > ($3::bigint, $4::text) AND ($5::text[] IS NULL OR signer = ANY ($5))
   ORDER BY chain_id, signer
   LIMIT $6
)
SELECT p.chain_id, p.signer, s.owner_node, s.fencing_token, s.acquired_at,
       CASE WHEN s.expires_at > clock_timestamp() THEN s.expires_at END AS held_until,
       c.next_nonce, c.start_nonce, c.state, c.reason, c.pause, c.updated_at AS changed_at, u.used_by, live.in_flight, live.queued, live.suspended
  FROM page p
  LEFT JOIN signer_use u ON u.chain_id = p.chain_id AND u.signer = p.signer
  LEFT JOIN signer_lease s ON s.chain_id = p.chain_id AND s.signer = p.signer
  LEFT JOIN signer_nonce_cursor c ON c.chain_id = p.chain_id AND c.signer = p.signer
 CROSS JOIN LATERAL (
   SELECT count(*) FILTER (WHERE t.nonce IS NOT NULL) AS in_flight,
          count(*) FILTER (WHERE t.state = 'QUEUED') AS queued,
          count(*) FILTER (WHERE t.state = 'SUSPENDED') AS suspended
     FROM managed_tx t
    WHERE t.chain_id = p.chain_id AND t.signer = p.signer
      AND t.is_live) live
 ORDER BY p.chain_id, p.signer

-- name: read_lane_place
-- Read the heads of a signer's lane, how many live transactions are before one of them, and the signer's last pause.
WITH live AS (
  SELECT t.tx_id, t.nonce, t.seq, t.state, t.receipt IS NOT NULL AS is_mined
    FROM managed_tx t
   WHERE t.chain_id = $1 AND t.signer = $2 AND t.is_live
), own AS (
  SELECT nonce, seq FROM live WHERE tx_id = $3
), heads AS (
  SELECT (SELECT tx_id FROM live WHERE nonce IS NOT NULL AND NOT is_mined ORDER BY nonce LIMIT 1) AS unmined,
         (SELECT tx_id FROM live WHERE is_mined ORDER BY nonce LIMIT 1) AS mined,
         (SELECT tx_id FROM live WHERE state = 'QUEUED' ORDER BY seq LIMIT 1) AS queued,
         (SELECT count(*) FROM live WHERE nonce IS NOT NULL AND NOT is_mined
             AND nonce < coalesce((SELECT nonce FROM own), 9223372036854775807)) AS unmined_before,
         (SELECT count(*) FROM live WHERE is_mined) AS mined_count,
         (SELECT count(*) FROM live JOIN own ON own.nonce IS NULL
           WHERE live.state = 'QUEUED' AND live.seq < own.seq) AS queued_before
)
SELECT h.unmined, h.mined, h.queued, h.unmined_before, h.mined_count, h.queued_before,
       p.author AS paused_by, p.created_at AS paused_at, p.reason AS pause_reason, p.is_drain
  FROM heads h
  LEFT JOIN LATERAL (
    SELECT author, created_at, reason, (detail ->> 'drain') = 'true' AS is_drain
      FROM lane_command
     WHERE chain_id = $1 AND signer = $2 AND command = 'pause' AND applied
     ORDER BY id DESC
     LIMIT 1) p ON true

-- name: read_command
-- Read an operator command and its outcome.
SELECT id, chain_id, signer, tx_id, command, author, reason, created_at, done_at, outcome, applied
  FROM lane_command
 WHERE id = $1

-- name: read_ping
-- Check that the database responds and accepts writes.
SELECT NOT pg_is_in_recovery()

-- name: all_signers
-- List every signer of these chains that has a cursor or a live transaction.
SELECT c.chain_id, c.signer FROM signer_nonce_cursor c WHERE c.chain_id = ANY ($1::bigint[])
 UNION
SELECT t.chain_id, t.signer FROM managed_tx t WHERE t.is_live AND t.chain_id = ANY ($1::bigint[])
 ORDER BY 1, 2

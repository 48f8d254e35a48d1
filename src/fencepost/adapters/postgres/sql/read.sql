-- name: read_tx
-- One transaction, by its id.
SELECT t.tx_id, t.chain_id, t.signer, t.request_id, t.kind, t.payload, t.valid_until, t.state, t.sub_state,
       t.nonce, t.ending, t.error, t.submit_count, t.tx_hash, t.block_number, t.block_hash, t.receipt,
       t.confirmations, t.tags, t.created_at, t.updated_at, t.finished_at
  FROM managed_tx t
 WHERE t.tx_id = $1

-- name: read_txs
-- Some transactions, by their ids.
SELECT t.tx_id, t.chain_id, t.signer, t.request_id, t.kind, t.payload, t.valid_until, t.state, t.sub_state,
       t.nonce, t.ending, t.error, t.submit_count, t.tx_hash, t.block_number, t.block_hash, NULL::json AS receipt,
       t.confirmations, t.tags, t.created_at, t.updated_at, t.finished_at
  FROM managed_tx t
 WHERE t.tx_id = ANY ($1::uuid[])

-- name: read_tx_by_request
-- One transaction, by what its caller named it.
SELECT t.tx_id, t.chain_id, t.signer, t.request_id, t.kind, t.payload, t.valid_until, t.state, t.sub_state,
       t.nonce, t.ending, t.error, t.submit_count, t.tx_hash, t.block_number, t.block_hash, t.receipt,
       t.confirmations, t.tags, t.created_at, t.updated_at, t.finished_at
  FROM managed_tx t
 WHERE t.chain_id = $1 AND t.signer = $2 AND t.request_id = $3

-- name: read_tx_by_hash
-- The transaction that any attempt with this hash belongs to.
SELECT t.tx_id, t.chain_id, t.signer, t.request_id, t.kind, t.payload, t.valid_until, t.state, t.sub_state,
       t.nonce, t.ending, t.error, t.submit_count, t.tx_hash, t.block_number, t.block_hash, t.receipt,
       t.confirmations, t.tags, t.created_at, t.updated_at, t.finished_at
  FROM tx_attempt a
  JOIN managed_tx t ON t.tx_id = a.tx_id
 WHERE a.chain_id = ANY ($1::bigint[]) AND a.tx_hash = $2

-- name: read_tx_page
-- Transactions from the newest to the oldest, below one of them: ids rise with time.
SELECT t.tx_id, t.chain_id, t.signer, t.request_id, t.kind, t.payload, t.valid_until, t.state, t.sub_state,
       t.nonce, t.ending, t.error, t.submit_count, t.tx_hash, t.block_number, t.block_hash,
       CASE WHEN $9 THEN t.receipt END AS receipt, t.confirmations, t.tags, t.created_at, t.updated_at,
       t.finished_at
  FROM managed_tx t
 WHERE t.tx_id < $1
   AND ($2::bigint IS NULL OR t.chain_id = $2)
   AND ($3::text[] IS NULL OR t.signer = ANY ($3))
   AND ($4::text[] IS NULL OR t.state = ANY ($4))
   AND ($5::text[] IS NULL OR t.sub_state = ANY ($5))
   AND ($6::timestamptz IS NULL OR t.created_at >= $6)
   AND ($7::timestamptz IS NULL OR t.created_at < $7)
 ORDER BY t.tx_id DESC
 LIMIT $8

-- name: read_tx_page_tagged
-- The same, of transactions that carry all the given tags; a statement of its own, so that the tags' index serves it.
SELECT t.tx_id, t.chain_id, t.signer, t.request_id, t.kind, t.payload, t.valid_until, t.state, t.sub_state,
       t.nonce, t.ending, t.error, t.submit_count, t.tx_hash, t.block_number, t.block_hash,
       CASE WHEN $9 THEN t.receipt END AS receipt, t.confirmations, t.tags, t.created_at, t.updated_at,
       t.finished_at
  FROM managed_tx t
 WHERE t.tx_id < $1
   AND t.tags @> $10::text[] AND t.tags <> '{}'
   AND ($2::bigint IS NULL OR t.chain_id = $2)
   AND ($3::text[] IS NULL OR t.signer = ANY ($3))
   AND ($4::text[] IS NULL OR t.state = ANY ($4))
   AND ($5::text[] IS NULL OR t.sub_state = ANY ($5))
   AND ($6::timestamptz IS NULL OR t.created_at >= $6)
   AND ($7::timestamptz IS NULL OR t.created_at < $7)
 ORDER BY t.tx_id DESC
 LIMIT $8

-- name: read_attempts
-- What was signed for some transactions, oldest first; without the bytes.
SELECT a.tx_id, a.attempt, a.purpose, a.tx_type, a.gas, a.fee_cap_wei, a.tip_wei, a.tx_hash, a.created_at,
       t.sends
  FROM managed_tx t
  JOIN tx_attempt a ON a.chain_id = t.chain_id AND a.signer = t.signer AND a.nonce = t.nonce AND a.tx_id = t.tx_id
 WHERE t.tx_id = ANY ($1::uuid[])
 ORDER BY a.tx_id, a.attempt

-- name: read_journal_of_tx
-- The newest of what happened to a transaction, oldest first.
SELECT id, at, event, state, detail
  FROM (SELECT id, at, event, state, detail
          FROM journal
         WHERE moment = left($1::uuid::text, 11) AND $1 = ANY (together) AND tx_id = $1
         ORDER BY id DESC
         LIMIT $2) newest
 ORDER BY id

-- name: read_completions
-- What ended after a place in the order (xid, id); below the oldest running transaction nothing can appear any more.
-- The place may lie inside a sheet, which then began at most 255 before it.
SELECT j.xid::text AS xid, j.id, j.at, j.event, j.state, j.tx_id, j.chain_id, j.signer,
       t.request_id, t.nonce, t.tx_hash, t.block_number, t.error, t.state AS state_now
  FROM (SELECT s.id AS sheet, s.id + (tx.position - 1) * cardinality(s.events) + e.position - 1 AS id, s.xid, s.at,
               s.chain_id, s.signer, tx.tx_id, e.event, e.state
          FROM journal_sheet s
         CROSS JOIN LATERAL unnest(s.tx_ids) WITH ORDINALITY AS tx (tx_id, position)
         CROSS JOIN LATERAL unnest(s.events, s.states) WITH ORDINALITY AS e (event, state, position)
         WHERE s.events && '{Finish,Refuse,Cancel,Lose}'::text[]
           AND (s.xid, s.id) > ($1::text::xid8, $2::bigint - 256)
           AND s.xid < pg_snapshot_xmin(pg_current_snapshot())
           AND ($3::text[] IS NULL OR s.signer = ANY ($3))) j
  JOIN managed_tx t ON t.tx_id = j.tx_id
 WHERE j.event IN ('Finish', 'Refuse', 'Cancel', 'Lose')
   AND (j.xid, j.id) > ($1::text::xid8, $2::bigint)
 ORDER BY j.xid, j.sheet, j.id -- sheet by sheet, so that no more of them are read than are told
 LIMIT $4

-- name: read_signers
-- Signers in the order of chain and address, after a place in it: those that the caller knows of and all that ever worked.
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
       c.next_nonce, c.start_nonce, c.state, c.reason, live.in_flight, live.queued, live.suspended
  FROM page p
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

-- name: read_command
-- What became of a wish.
SELECT id, chain_id, signer, tx_id, command, asked_by, reason, asked_at, done_at, outcome
  FROM lane_command
 WHERE id = $1

-- name: read_ping
-- That the database answers, and may be written to.
SELECT NOT pg_is_in_recovery()

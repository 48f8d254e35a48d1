-- name: load_cursors
-- Where the sequences of signers stand.
SELECT c.chain_id, c.signer, c.next_nonce, c.start_nonce, c.is_doubted, c.state, c.reason, c.fencing_token
  FROM unnest($1::bigint[], $2::text[]) AS a (chain_id, signer)
  JOIN signer_nonce_cursor c ON c.chain_id = a.chain_id AND c.signer = a.signer

-- name: history_is_young
-- Whether the newest history of the database began less than so many seconds ago.
SELECT NOT EXISTS (
  SELECT 1 FROM database_history h
   WHERE h.timeline = (SELECT max(timeline) FROM database_history)
     AND h.began_at <= clock_timestamp() - make_interval(secs => $1))

-- name: load_in_flight
-- The live transactions of signers that have a nonce, by nonce.
SELECT t.*, extract(epoch FROM clock_timestamp() - t.last_submit_at)::float8 AS submitted_ago_s,
       extract(epoch FROM t.next_resubmit_at - clock_timestamp())::float8 AS resubmit_in_s,
       extract(epoch FROM t.valid_until - clock_timestamp())::float8 AS valid_for_s
  FROM unnest($1::bigint[], $2::text[]) AS a (chain_id, signer)
 CROSS JOIN LATERAL (
   SELECT * FROM managed_tx q
    WHERE q.chain_id = a.chain_id AND q.signer = a.signer AND q.nonce IS NOT NULL
      AND q.is_live
   OFFSET 0 -- signer by signer, whatever the planner thinks of how many there are
 ) t
 ORDER BY t.nonce

-- name: load_queues
-- The oldest requests without a nonce of each signer, by arrival: what such a row can have.
SELECT a.position, t.tx_id, t.seq, t.kind, t.payload, t.request_id, t.origin, t.version, t.sub_state, t.error,
       t.journal_count,
       extract(epoch FROM t.valid_until - clock_timestamp())::float8 AS valid_for_s,
       extract(epoch FROM clock_timestamp() - t.created_at)::float8 AS received_ago_s
  FROM unnest($1::bigint[], $2::text[], $3::bigint[]) WITH ORDINALITY AS a (chain_id, signer, most, position)
 CROSS JOIN LATERAL (
   SELECT * FROM managed_tx q
    WHERE q.chain_id = a.chain_id AND q.signer = a.signer AND q.state = 'QUEUED'
      AND q.is_live
    ORDER BY q.seq
    LIMIT a.most
 ) t
 ORDER BY a.position, t.seq

-- name: load_finished
-- A signer's ended transactions from a nonce on, by nonce. No index names nonces but that of the bytes; the few that were
-- lost before they had any are among those that ended with an error.
WITH ended AS (
  SELECT a.tx_id
    FROM tx_attempt a
   WHERE a.chain_id = $1 AND a.signer = $2 AND a.nonce >= $3 AND a.attempt = 1
   UNION ALL
  SELECT e.tx_id
    FROM managed_tx e
   WHERE e.chain_id = $1 AND e.signer = $2 AND NOT e.is_live AND e.error IS NOT NULL
     AND e.nonce >= $3 AND e.tx_hash IS NULL
)
SELECT t.*, extract(epoch FROM clock_timestamp() - t.last_submit_at)::float8 AS submitted_ago_s,
       NULL::float8 AS resubmit_in_s, NULL::float8 AS valid_for_s
  FROM ended
  JOIN managed_tx t ON t.tx_id = ended.tx_id
 WHERE t.state IN ('CONFIRMED', 'FAILED', 'CANCELLED')
 ORDER BY t.nonce
 LIMIT $4

-- name: load_attempts
-- All attempts of some transactions, oldest first.
SELECT a.tx_id, a.attempt, a.purpose, a.tx_type, a.gas, a.fee_cap_wei, a.tip_wei, a.raw, a.tx_hash, t.sends
  FROM managed_tx t
  JOIN tx_attempt a ON a.chain_id = t.chain_id AND a.signer = t.signer AND a.nonce = t.nonce AND a.tx_id = t.tx_id
 WHERE t.tx_id = ANY ($1::uuid[])
 ORDER BY a.tx_id, a.attempt

-- name: load_commands
-- What people asked of the lanes of signers and nobody answered yet.
SELECT a.position, c.id, c.command, c.tx_id, c.detail, c.asked_by, c.reason
  FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS a (chain_id, signer, position)
 CROSS JOIN LATERAL (
   SELECT * FROM lane_command d
    WHERE d.chain_id = a.chain_id AND d.signer = a.signer AND d.done_at IS NULL
    ORDER BY d.id
    LIMIT 100
 ) c
 ORDER BY a.position, c.id

-- name: tx_by_id
-- One transaction.
SELECT t.*, extract(epoch FROM clock_timestamp() - t.last_submit_at)::float8 AS submitted_ago_s,
       extract(epoch FROM t.next_resubmit_at - clock_timestamp())::float8 AS resubmit_in_s,
       extract(epoch FROM t.valid_until - clock_timestamp())::float8 AS valid_for_s
  FROM managed_tx t
 WHERE t.tx_id = $1

-- name: tx_by_request
-- One transaction, by what its caller named it.
SELECT t.*, extract(epoch FROM clock_timestamp() - t.last_submit_at)::float8 AS submitted_ago_s,
       extract(epoch FROM t.next_resubmit_at - clock_timestamp())::float8 AS resubmit_in_s,
       extract(epoch FROM t.valid_until - clock_timestamp())::float8 AS valid_for_s
  FROM managed_tx t
 WHERE t.chain_id = $1 AND t.signer = $2 AND t.request_id = $3

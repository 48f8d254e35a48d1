-- name: load_cursor
-- Where a signer's sequence stands.
SELECT next_nonce, start_nonce, state, reason, fencing_token FROM signer_nonce_cursor WHERE chain_id = $1 AND signer = $2

-- name: load_in_flight
-- A signer's live transactions that have a nonce, by nonce.
SELECT t.*, extract(epoch FROM clock_timestamp() - t.last_submit_at)::float8 AS submitted_ago_s,
       extract(epoch FROM t.next_resubmit_at - clock_timestamp())::float8 AS resubmit_in_s,
       extract(epoch FROM t.valid_until - clock_timestamp())::float8 AS valid_for_s
  FROM managed_tx t
 WHERE t.chain_id = $1 AND t.signer = $2 AND t.nonce IS NOT NULL
   AND t.is_live
 ORDER BY t.nonce

-- name: load_queue
-- A signer's oldest requests without a nonce, by arrival.
SELECT t.*, NULL::float8 AS submitted_ago_s, NULL::float8 AS resubmit_in_s,
       extract(epoch FROM t.valid_until - clock_timestamp())::float8 AS valid_for_s,
       extract(epoch FROM clock_timestamp() - t.created_at)::float8 AS received_ago_s
  FROM managed_tx t
 WHERE t.chain_id = $1 AND t.signer = $2 AND t.state = 'QUEUED'
   AND t.is_live
 ORDER BY t.seq
 LIMIT $3

-- name: load_finished
-- A signer's ended transactions with bytes from a nonce on, by nonce.
SELECT t.*, extract(epoch FROM clock_timestamp() - t.last_submit_at)::float8 AS submitted_ago_s,
       NULL::float8 AS resubmit_in_s, NULL::float8 AS valid_for_s
  FROM tx_attempt a
  JOIN managed_tx t ON t.tx_id = a.tx_id
 WHERE a.chain_id = $1 AND a.signer = $2 AND a.nonce >= $3 AND a.attempt = 1
   AND t.state IN ('CONFIRMED', 'FAILED', 'CANCELLED')
 ORDER BY a.nonce
 LIMIT $4

-- name: load_attempts
-- All attempts of some transactions, oldest first.
SELECT a.tx_id, a.attempt, a.purpose, a.tx_type, a.gas, a.fee_cap_wei, a.tip_wei, a.raw, a.tx_hash, a.sent_count,
       a.last_result, a.last_message
  FROM managed_tx t
  JOIN tx_attempt a ON a.chain_id = t.chain_id AND a.signer = t.signer AND a.nonce = t.nonce AND a.tx_id = t.tx_id
 WHERE t.tx_id = ANY ($1::uuid[])
 ORDER BY a.tx_id, a.attempt

-- name: load_commands
-- What people asked of a signer's lane and nobody answered yet.
SELECT id, command, tx_id, detail, asked_by, reason
  FROM lane_command
 WHERE chain_id = $1 AND signer = $2 AND done_at IS NULL
 ORDER BY id
 LIMIT 100

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

-- name: journal_of_tx
-- What happened to a transaction, oldest first.
SELECT id, at, event, state, detail, node, fencing_token
  FROM journal
 WHERE tx_id = $1
 ORDER BY id
 LIMIT $2

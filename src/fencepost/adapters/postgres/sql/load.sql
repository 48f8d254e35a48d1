-- name: load_cursors
-- Load the cursors of signers.
SELECT c.chain_id, c.signer, c.fencing_token,
       {{cursor_columns}},
       EXISTS (SELECT FROM database_history h
                WHERE h.history > c.fencing_token >> 32 AND h.is_copy) AS is_from_copy
  FROM unnest($1::bigint[], $2::text[]) AS a (chain_id, signer)
  JOIN signer_nonce_cursor c ON c.chain_id = a.chain_id AND c.signer = a.signer

-- name: young_history
-- Say whether the newest history of the database began less than $1 seconds ago, and whether it belongs to a copy.
SELECT coalesce(bool_and(h.began_at > clock_timestamp() - make_interval(secs => $1)), true) AS is_young,
       coalesce(bool_or(h.is_copy), true) AS is_copy
  FROM database_history h
 WHERE h.history = (SELECT max(history) FROM database_history)

-- name: load_in_flight
-- Load the live transactions of signers that have a nonce, by nonce.
SELECT {{tx_columns}}
  FROM unnest($1::bigint[], $2::text[]) AS a (chain_id, signer)
 CROSS JOIN LATERAL (
   SELECT * FROM managed_tx q
    WHERE q.chain_id = a.chain_id AND q.signer = a.signer AND q.nonce IS NOT NULL
      AND q.is_live
   OFFSET 0 -- one index scan per signer, whatever row count the planner estimates
 ) t
 ORDER BY t.nonce

-- name: load_queues
-- Load the oldest queued requests of each signer, by arrival. Only the columns that a QUEUED row can have set.
SELECT a.position,
       {{queue_columns}}
  FROM unnest($1::bigint[], $2::text[], $3::bigint[]) WITH ORDINALITY AS a (chain_id, signer, most, position)
 CROSS JOIN LATERAL (
   SELECT * FROM managed_tx q
    WHERE q.chain_id = a.chain_id AND q.signer = a.signer AND q.state = 'QUEUED'
      AND q.is_live
    ORDER BY q.seq
    LIMIT a.most
 ) t
 ORDER BY a.position, t.seq

-- name: load_unsent
-- Load a signer's live requests without a nonce, queued or suspended, by arrival.
SELECT {{tx_columns}},
       extract(epoch FROM t.created_at)::float8 AS accepted_at_s,
       extract(epoch FROM clock_timestamp() - t.created_at)::float8 AS age_s
  FROM managed_tx t
 WHERE t.chain_id = $1 AND t.signer = $2 AND t.is_live AND t.nonce IS NULL AND t.seq > $3
 ORDER BY t.seq
 LIMIT $4

-- name: load_finished
-- Load a signer's ended transactions from a nonce on, by nonce. Only the index of tx_attempt contains nonces; the few
-- transactions that were lost before they had an attempt are found among those that ended with an error.
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
SELECT {{tx_columns}}
  FROM ended
  JOIN managed_tx t ON t.tx_id = ended.tx_id
 WHERE t.state IN ('CONFIRMED', 'FAILED', 'CANCELLED')
 ORDER BY t.nonce
 LIMIT $4

-- name: load_attempts
-- Load all attempts of the given transactions, oldest first.
SELECT {{attempt_columns}}, t.sends
  FROM managed_tx t
  JOIN tx_attempt a ON a.chain_id = t.chain_id AND a.signer = t.signer AND a.nonce = t.nonce AND a.tx_id = t.tx_id
 WHERE t.tx_id = ANY ($1::uuid[])
 ORDER BY a.tx_id, a.attempt

-- name: load_commands
-- Load the open operator commands of signers, oldest first.
SELECT a.position,
       {{command_columns}}
  FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS a (chain_id, signer, position)
 CROSS JOIN LATERAL (
   SELECT * FROM lane_command d
    WHERE d.chain_id = a.chain_id AND d.signer = a.signer AND d.done_at IS NULL
    ORDER BY d.id
    LIMIT 100
 ) c
 ORDER BY a.position, c.id

-- name: tx_by_id
-- Load one transaction by its id.
SELECT {{tx_columns}}
  FROM managed_tx t
 WHERE t.tx_id = $1

-- name: tx_by_request
-- Load one transaction by its request id.
SELECT {{tx_columns}}
  FROM managed_tx t
 WHERE t.chain_id = $1 AND t.signer = $2 AND t.request_id = $3

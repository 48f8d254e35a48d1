-- name: commit_lanes
-- Applies what lanes decided: for each lane everything or nothing, and only under its current token.
-- fenced: by FOR KEY SHARE on the lease row with the token, first of all and for all that follows
WITH lane AS MATERIALIZED (
  SELECT *
    FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bool[], $5::bigint[], $6::text[], $7::bigint[],
                $8::bigint[], $9::text[], $10::text[])
         WITH ORDINALITY
         AS l (chain_id, signer, token, moves_cursor, next_expected, state_expected, next_nonce,
               start_nonce, cursor_state, reason, lane)
), held AS MATERIALIZED (
  SELECT l.*
    FROM signer_lease s
    JOIN lane l ON s.chain_id = l.chain_id AND s.signer = l.signer AND s.fencing_token = l.token
     FOR KEY SHARE OF s
), change AS MATERIALIZED (
  SELECT *
    FROM unnest($11::bigint[], $12::uuid[], $13::bigint[], $14::text[], $15::text[], $16::bigint[], $17::text[],
                $18::text[], $19::int[], $20::int[], $21::float8[], $22::float8[], $23::text[], $24::bigint[],
                $25::text[], $26::bool[], $27::text[], $28::bool[], $29::text[])
         AS c (lane, tx_id, version, state, sub_state, nonce, ending, error, submit_count, journal_count,
               submitted_ago_s, resubmit_in_s, tx_hash, block_number, block_hash, sets_receipt, receipt,
               sets_confirmations, confirmations)
), moved AS MATERIALIZED (
  -- A row that is not as the lane remembers it, or a step that the table of states does not have.
  SELECT c.lane
    FROM change c
    JOIN held h ON h.lane = c.lane
    LEFT JOIN managed_tx t ON t.tx_id = c.tx_id
    LEFT JOIN state_transition x ON x.old_state = t.state AND x.new_state = c.state
   WHERE t.version IS DISTINCT FROM c.version OR x.old_state IS NULL
   UNION
  SELECT h.lane
    FROM held h
    LEFT JOIN signer_nonce_cursor k ON k.chain_id = h.chain_id AND k.signer = h.signer
   WHERE h.moves_cursor
     AND (k.next_nonce IS DISTINCT FROM h.next_expected OR k.state IS DISTINCT FROM h.state_expected)
), good AS MATERIALIZED (
  SELECT h.* FROM held h WHERE NOT EXISTS (SELECT 1 FROM moved m WHERE m.lane = h.lane)
), cursors AS (
  INSERT INTO signer_nonce_cursor AS k (chain_id, signer, next_nonce, start_nonce, state, reason, fencing_token)
  SELECT g.chain_id, g.signer, g.next_nonce, g.start_nonce, g.cursor_state, g.reason, g.token
    FROM good g
   WHERE g.moves_cursor
      ON CONFLICT (chain_id, signer) DO UPDATE
     SET next_nonce = excluded.next_nonce, start_nonce = excluded.start_nonce, state = excluded.state,
         reason = excluded.reason, fencing_token = excluded.fencing_token, updated_at = clock_timestamp()
), txs AS (
  UPDATE managed_tx t
     SET version = t.version + 1,
         state = c.state,
         sub_state = c.sub_state,
         nonce = c.nonce,
         ending = c.ending,
         error = c.error,
         submit_count = c.submit_count,
         journal_count = c.journal_count,
         last_submit_at = clock_timestamp() - make_interval(secs => c.submitted_ago_s),
         next_resubmit_at = clock_timestamp() + make_interval(secs => c.resubmit_in_s),
         tx_hash = c.tx_hash,
         block_number = c.block_number,
         block_hash = c.block_hash,
         receipt = CASE WHEN c.sets_receipt THEN c.receipt::jsonb ELSE t.receipt END,
         confirmations = CASE WHEN c.sets_confirmations THEN c.confirmations::jsonb ELSE t.confirmations END,
         fencing_token = g.token,
         updated_at = clock_timestamp(),
         is_live = c.state NOT IN ('CONFIRMED', 'FAILED', 'CANCELLED'),
         finished_at = CASE WHEN c.state IN ('CONFIRMED', 'FAILED', 'CANCELLED') THEN clock_timestamp() END
    FROM change c
    JOIN good g ON g.lane = c.lane
   WHERE t.tx_id = c.tx_id AND t.version = c.version
), fillers AS (
  -- Rows that nobody asked for: they begin with a nonce. The unique key on it refuses one that exists.
  INSERT INTO managed_tx
         (tx_id, chain_id, signer, kind, payload, payload_digest, version, state, nonce, tx_hash, journal_count,
          fencing_token)
  SELECT f.tx_id, g.chain_id, g.signer, 'filler', f.payload::jsonb, f.payload_digest, f.version + 1, f.state, f.nonce,
         f.tx_hash, f.journal_count, g.token
    FROM unnest($55::bigint[], $56::uuid[], $57::text[], $58::bytea[], $59::bigint[], $60::text[], $61::bigint[],
                $62::text[], $63::int[])
         WITH ORDINALITY
         AS f (lane, tx_id, payload, payload_digest, version, state, nonce, tx_hash, journal_count, position)
    JOIN good g ON g.lane = f.lane
   ORDER BY f.position
), new_attempts AS (
  INSERT INTO tx_attempt
         (tx_id, attempt, chain_id, signer, nonce, purpose, tx_type, gas, fee_cap_wei, tip_wei, raw, tx_hash,
          fencing_token)
  SELECT a.tx_id, a.attempt, g.chain_id, g.signer, a.nonce, a.purpose, a.tx_type, a.gas, a.fee_cap_wei::numeric,
         a.tip_wei::numeric, a.raw, a.tx_hash, g.token
    FROM unnest($30::bigint[], $31::uuid[], $32::int[], $33::bigint[], $34::text[], $35::smallint[], $36::bigint[],
                $37::text[], $38::text[], $39::bytea[], $40::text[])
         AS a (lane, tx_id, attempt, nonce, purpose, tx_type, gas, fee_cap_wei, tip_wei, raw, tx_hash)
    JOIN good g ON g.lane = a.lane
), sent_attempts AS (
  UPDATE tx_attempt a
     SET sent_count = r.sent_count, last_result = r.last_result, last_message = r.last_message,
         fencing_token = g.token
    FROM unnest($41::bigint[], $42::uuid[], $43::int[], $44::int[], $45::text[], $46::text[])
         AS r (lane, tx_id, attempt, sent_count, last_result, last_message)
    JOIN good g ON g.lane = r.lane
   WHERE a.tx_id = r.tx_id AND a.attempt = r.attempt
), journaled AS (
  INSERT INTO journal (chain_id, signer, tx_id, event, state, detail, node, fencing_token)
  SELECT g.chain_id, g.signer, e.tx_id, e.event, e.state, e.detail::jsonb, $64, g.token
    FROM unnest($47::bigint[], $48::uuid[], $49::text[], $50::text[], $51::text[])
         WITH ORDINALITY AS e (lane, tx_id, event, state, detail, position)
    JOIN good g ON g.lane = e.lane
   ORDER BY e.position
), commands AS (
  UPDATE lane_command d
     SET done_at = clock_timestamp(), outcome = o.outcome
    FROM unnest($52::bigint[], $53::bigint[], $54::text[]) AS o (lane, id, outcome)
    JOIN good g ON g.lane = o.lane
   WHERE d.id = o.id AND d.chain_id = g.chain_id AND d.signer = g.signer
)
SELECT l.lane, h.lane IS NOT NULL AS lease_ok, g.lane IS NOT NULL AS applied
  FROM lane l
  LEFT JOIN held h ON h.lane = l.lane
  LEFT JOIN good g ON g.lane = l.lane
 ORDER BY l.lane

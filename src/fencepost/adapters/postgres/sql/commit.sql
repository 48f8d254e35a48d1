-- name: commit_lanes
-- Applies what lanes decided: for each lane everything or nothing, and only under its current token.
-- Arrays of numbers and words come as their text: the driver takes much longer to encode them one by one.
-- fenced: by FOR KEY SHARE on the lease row with the token, first of all and for all that follows
WITH lane AS MATERIALIZED (
  SELECT *
    FROM unnest($1::text::bigint[], $2::text::text[], $3::text::bigint[], $4::text::bool[], $5::text::bigint[],
                $6::text::text[], $7::text::bigint[],
                $8::text::bigint[], $9::text::text[], $10::text[])
         WITH ORDINALITY
         AS l (chain_id, signer, token, moves_cursor, next_expected, state_expected, next_nonce,
               start_nonce, cursor_state, reason, lane)
), held AS MATERIALIZED (
  SELECT l.*
    FROM signer_lease s
    JOIN lane l ON s.chain_id = l.chain_id AND s.signer = l.signer AND s.fencing_token = l.token
     FOR KEY SHARE OF s
), change AS MATERIALIZED (
  -- Each row is looked up once. It stands if it is as the lane remembers it, and its step is in the table of states.
  SELECT c.*, t.ctid AS place,
         t.version = c.version
         AND (t.state, c.state) IN (SELECT x.old_state, x.new_state FROM state_transition x) AS stands
    FROM unnest($11::text::bigint[], $12::text::uuid[], $13::text::bigint[], $14::text::text[], $15::text::text[],
                $16::text::bigint[], $17::text::text[],
                $18::text[], $19::text::int[], $20::text::int[], $21::text::float8[], $22::text::float8[],
                $23::text[], $24::text::bigint[],
                $25::text[], $26::text::bool[], $27::text[], $28::text::bool[], $29::text[])
         AS c (lane, tx_id, version, state, sub_state, nonce, ending, error, submit_count, journal_count,
               submitted_ago_s, resubmit_in_s, tx_hash, block_number, block_hash, sets_receipt, receipt,
               sets_confirmations, confirmations)
    LEFT JOIN managed_tx t ON t.tx_id = c.tx_id
), good AS MATERIALIZED (
  SELECT h.*
    FROM held h
    LEFT JOIN signer_nonce_cursor k ON k.chain_id = h.chain_id AND k.signer = h.signer AND h.moves_cursor
   WHERE h.lane NOT IN (SELECT c.lane FROM change c WHERE c.stands IS NOT TRUE)
     AND (NOT h.moves_cursor
          OR (k.next_nonce IS NOT DISTINCT FROM h.next_expected AND k.state IS NOT DISTINCT FROM h.state_expected))
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
   WHERE t.ctid = c.place AND t.tx_id = c.tx_id AND t.version = c.version
), fillers AS (
  -- Rows that nobody asked for: they begin with a nonce. The unique key on it refuses one that exists.
  INSERT INTO managed_tx
         (tx_id, chain_id, signer, kind, payload, payload_digest, version, state, nonce, tx_hash, journal_count,
          fencing_token)
  SELECT f.tx_id, g.chain_id, g.signer, 'filler', f.payload::jsonb, f.payload_digest, f.version + 1, f.state, f.nonce,
         f.tx_hash, f.journal_count, g.token
    FROM unnest($55::text::bigint[], $56::text::uuid[], $57::text[], $58::bytea[], $59::text::bigint[],
                $60::text::text[], $61::text::bigint[],
                $62::text[], $63::text::int[])
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
    FROM unnest($30::text::bigint[], $31::text::uuid[], $32::text::int[], $33::text::bigint[], $34::text::text[],
                $35::text::smallint[], $36::text::bigint[],
                $37::text::text[], $38::text::text[], $39::bytea[], $40::text[])
         AS a (lane, tx_id, attempt, nonce, purpose, tx_type, gas, fee_cap_wei, tip_wei, raw, tx_hash)
    JOIN good g ON g.lane = a.lane
), sent_attempts AS (
  UPDATE tx_attempt a
     SET sent_count = r.sent_count, last_result = r.last_result, last_message = r.last_message,
         fencing_token = g.token
    FROM unnest($41::text::bigint[], $42::text::uuid[], $43::text::int[], $44::text::int[], $45::text::text[],
                $46::text[])
         AS r (lane, tx_id, attempt, sent_count, last_result, last_message)
    JOIN good g ON g.lane = r.lane
   WHERE a.tx_id = r.tx_id AND a.attempt = r.attempt
), journaled AS (
  INSERT INTO journal (chain_id, signer, tx_id, event, state, detail, node, fencing_token)
  SELECT g.chain_id, g.signer, e.tx_id, e.event, e.state, e.detail::jsonb, $64, g.token
    FROM unnest($47::text::bigint[], $48::text::uuid[], $49::text::text[], $50::text::text[], $51::text[])
         WITH ORDINALITY AS e (lane, tx_id, event, state, detail, position)
    JOIN good g ON g.lane = e.lane
   ORDER BY e.position
), commands AS (
  UPDATE lane_command d
     SET done_at = clock_timestamp(), outcome = o.outcome
    FROM unnest($52::text::bigint[], $53::text::bigint[], $54::text[]) AS o (lane, id, outcome)
    JOIN good g ON g.lane = o.lane
   WHERE d.id = o.id AND d.chain_id = g.chain_id AND d.signer = g.signer
)
SELECT l.lane, h.lane IS NOT NULL AS lease_ok, g.lane IS NOT NULL AS applied
  FROM lane l
  LEFT JOIN held h ON h.lane = l.lane
  LEFT JOIN good g ON g.lane = l.lane
 ORDER BY l.lane

-- name: commit_lanes
-- Applies what lanes decided: for each lane everything or nothing, and only under its current token.
-- fenced: by FOR KEY SHARE on the lease row with the token, first of all and for all that follows
-- Lanes whose term is over are missing from the answer. How columns travel, and why, stands in lane_arrays.py.
WITH lane AS MATERIALIZED (
  SELECT *
    FROM unnest($1::text::bigint[], $2::text::text[], $3::text::bigint[], $4::text::bool[], $5::text::bigint[],
                $6::text::text[], $7::text::bigint[], $8::text::bigint[], $9::text::text[], $10::text[])
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
         t.version = c.version AND x.old_state IS NOT NULL AS stands
    FROM unnest($11::text::bigint[], $12::text::uuid[], $13::text::bigint[], $14::text::text[], $15::text::text[],
                $16::text::bigint[], $17::text::text[], $18::text[], $19::text::int[], $20::text::int[],
                $21::text::float8[], $22::text::float8[], string_to_array($23, E'\x1f', ''), $24::text::bigint[],
                string_to_array($25, E'\x1f', ''), $26::text::bool[], string_to_array($27, E'\x1f', ''),
                $28::text::bool[], string_to_array($29, E'\x1f', ''), $30::text::bool[],
                string_to_array($31, E'\x1f', ''))
         AS c (lane, tx_id, version, state, sub_state, nonce, ending, error, submit_count, journal_count,
               submitted_ago_s, resubmit_in_s, tx_hash, block_number, block_hash, sets_receipt, receipt,
               sets_confirmations, confirmations, sets_sends, sends)
    LEFT JOIN managed_tx t ON t.tx_id = c.tx_id
    LEFT JOIN state_transition x ON x.old_state = t.state AND x.new_state = c.state
), judged AS MATERIALIZED (
  SELECT h.*,
         h.lane NOT IN (SELECT c.lane FROM change c WHERE c.stands IS NOT TRUE)
         AND (NOT h.moves_cursor
              OR (k.next_nonce IS NOT DISTINCT FROM h.next_expected AND k.state IS NOT DISTINCT FROM h.state_expected))
         AS applies
    FROM held h
    LEFT JOIN signer_nonce_cursor k ON k.chain_id = h.chain_id AND k.signer = h.signer AND h.moves_cursor
), cursors AS (
  INSERT INTO signer_nonce_cursor AS k (chain_id, signer, next_nonce, start_nonce, state, reason, fencing_token)
  SELECT g.chain_id, g.signer, g.next_nonce, g.start_nonce, g.cursor_state, g.reason, g.token
    FROM judged g
   WHERE g.applies AND g.moves_cursor
      ON CONFLICT (chain_id, signer) DO UPDATE
     SET next_nonce = excluded.next_nonce, start_nonce = excluded.start_nonce, state = excluded.state,
         reason = excluded.reason, fencing_token = excluded.fencing_token, updated_at = clock_timestamp()
), txs AS (
  -- By the place that was just looked up; the id is compared in a way that no index serves.
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
         receipt = CASE WHEN c.sets_receipt THEN c.receipt::json ELSE t.receipt END,
         confirmations = CASE WHEN c.sets_confirmations THEN c.confirmations::json ELSE t.confirmations END,
         sends = CASE WHEN c.sets_sends THEN c.sends::json ELSE t.sends END,
         fencing_token = g.token,
         updated_at = clock_timestamp(),
         is_live = c.state NOT IN ('CONFIRMED', 'FAILED', 'CANCELLED'),
         finished_at = CASE WHEN c.state IN ('CONFIRMED', 'FAILED', 'CANCELLED') THEN clock_timestamp() END
    FROM change c
    JOIN judged g ON g.lane = c.lane AND g.applies
   WHERE t.ctid = c.place AND t.tx_id IS NOT DISTINCT FROM c.tx_id AND t.version = c.version
), fillers AS (
  -- Rows that nobody asked for: they begin with a nonce and bytes for it. The key of attempts refuses one that exists.
  INSERT INTO managed_tx
         (tx_id, chain_id, signer, kind, payload, payload_digest, version, state, nonce, tx_hash, journal_count,
          fencing_token)
  SELECT f.tx_id, g.chain_id, g.signer, 'filler', f.payload::jsonb, f.payload_digest, f.version + 1, f.state, f.nonce,
         f.tx_hash, f.journal_count, g.token
    FROM unnest($52::text::bigint[], $53::text::uuid[], string_to_array($54, E'\x1f', ''), $55::bytea[],
                $56::text::bigint[], $57::text::text[], $58::text::bigint[], string_to_array($59, E'\x1f', ''),
                $60::text::int[])
         WITH ORDINALITY
         AS f (lane, tx_id, payload, payload_digest, version, state, nonce, tx_hash, journal_count, position)
    JOIN judged g ON g.lane = f.lane AND g.applies
   ORDER BY f.position
), new_attempts AS (
  INSERT INTO tx_attempt
         (tx_id, attempt, chain_id, signer, nonce, purpose, tx_type, gas, fee_cap_wei, tip_wei, raw, tx_hash,
          fencing_token)
  SELECT a.tx_id, a.attempt, g.chain_id, g.signer, a.nonce, a.purpose, a.tx_type, a.gas, a.fee_cap_wei, a.tip_wei,
         a.raw, a.tx_hash, g.token
    FROM unnest($32::text::bigint[], $33::text::uuid[], $34::text::int[], $35::text::bigint[], $36::text::text[],
                $37::text::smallint[], $38::text::bigint[], $39::text::numeric[], $40::text::numeric[], $41::bytea[],
                string_to_array($42, E'\x1f', ''))
         AS a (lane, tx_id, attempt, nonce, purpose, tx_type, gas, fee_cap_wei, tip_wei, raw, tx_hash)
    JOIN judged g ON g.lane = a.lane AND g.applies
), journaled AS (
  INSERT INTO journal_sheet (chain_id, signer, moment, tx_ids, events, states, details, node, fencing_token)
  SELECT g.chain_id, g.signer, e.moment, e.tx_ids::uuid[], e.events::text[], e.states::text[], e.details::json, $61,
         g.token
    FROM unnest($43::text::bigint[], $44::text::text[], string_to_array($45, E'\x1f'), string_to_array($46, E'\x1f'),
                string_to_array($47, E'\x1f'), string_to_array($48, E'\x1f', ''))
         WITH ORDINALITY AS e (lane, moment, tx_ids, events, states, details, position)
    JOIN judged g ON g.lane = e.lane AND g.applies
   ORDER BY e.position
), commands AS (
  UPDATE lane_command d
     SET done_at = clock_timestamp(), outcome = o.outcome
    FROM unnest($49::text::bigint[], $50::text::bigint[], $51::text[]) AS o (lane, id, outcome)
    JOIN judged g ON g.lane = o.lane AND g.applies
   WHERE d.id = o.id AND d.chain_id = g.chain_id AND d.signer = g.signer
)
SELECT g.lane, g.applies AS applied FROM judged g

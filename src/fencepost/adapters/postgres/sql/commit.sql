-- name: commit_lanes
-- Applies what lanes decided: for each lane everything or nothing, and only under its current token.
-- fenced: by FOR KEY SHARE on the lease row with the token, first of all and for all that follows
-- Lanes whose term is over are missing from the answer. How columns travel, and why, stands in arrays.py.
WITH lane AS MATERIALIZED (
  SELECT unnest($1::text::bigint[]) AS lane,
         unnest($2::text::bigint[]) AS chain_id,
         unnest($3::text::text[]) AS signer,
         unnest($4::text::bigint[]) AS token,
         unnest($5::text::bigint[]) AS next_expected,
         unnest($6::text::text[]) AS state_expected,
         unnest($7::text::bigint[]) AS next_nonce, -- NULL: the cursor stays as it is
         unnest($8::text::bigint[]) AS start_nonce,
         unnest($9::text::bool[]) AS is_doubted,
         unnest($10::text::text[]) AS cursor_state,
         unnest($11::text[]) AS reason
), held AS MATERIALIZED (
  SELECT l.*
    FROM signer_lease s
    JOIN lane l ON s.chain_id = l.chain_id AND s.signer = l.signer AND s.fencing_token = l.token
     FOR KEY SHARE OF s
), change AS MATERIALIZED (
  -- Each row is looked up once. It stands if it is as the lane remembers it, and its step is a legal one.
  SELECT c.*, t.ctid AS place,
         t.version = c.version AND may_follow(t.state, c.state) AS stands
    FROM (SELECT unnest($12::text::bigint[]) AS lane,
                 unnest($13::text::uuid[]) AS tx_id,
                 unnest($14::text::bigint[]) AS version,
                 unnest($15::text::text[]) AS state,
                 unnest($16::text::text[]) AS sub_state,
                 unnest($17::text::bigint[]) AS nonce,
                 unnest($18::text::text[]) AS ending,
                 unnest($19::text[]) AS error,
                 unnest($20::text::int[]) AS submit_count,
                 unnest($21::text::int[]) AS journal_count,
                 unnest($22::text::float8[]) AS submitted_ago_s,
                 unnest($23::text::float8[]) AS resubmit_in_s,
                 unnest(string_to_array($24, E'\x1f', '')) AS tx_hash,
                 unnest($25::text::bigint[]) AS block_number,
                 unnest(string_to_array($26, E'\x1f', '')) AS block_hash,
                 unnest($27::text::bool[]) AS sets_receipt,
                 unnest(string_to_array($28, E'\x1f', '')) AS receipt,
                 unnest($29::text::bool[]) AS sets_confirmations,
                 unnest(string_to_array($30, E'\x1f', '')) AS confirmations,
                 unnest($31::text::bool[]) AS sets_sends,
                 unnest(string_to_array($32, E'\x1f', '')) AS sends) c
    LEFT JOIN managed_tx t ON t.tx_id = c.tx_id
), judged AS MATERIALIZED (
  SELECT h.*, k.ctid AS place,
         h.lane NOT IN (SELECT c.lane FROM change c WHERE c.stands IS NOT TRUE)
         AND (h.next_nonce IS NULL
              OR (k.next_nonce IS NOT DISTINCT FROM h.next_expected AND k.state IS NOT DISTINCT FROM h.state_expected))
         AS applies
    FROM held h
    LEFT JOIN signer_nonce_cursor k -- by a key that is NULL, and not looked for, where the cursor stays as it is
           ON k.chain_id = h.chain_id AND k.signer = CASE WHEN h.next_nonce IS NOT NULL THEN h.signer END
), new_cursors AS (
  INSERT INTO signer_nonce_cursor (chain_id, signer, next_nonce, start_nonce, is_doubted, state, reason, fencing_token)
  SELECT g.chain_id, g.signer, g.next_nonce, g.start_nonce, g.is_doubted, g.cursor_state, g.reason, g.token
    FROM judged g
   WHERE g.applies AND g.next_nonce IS NOT NULL AND g.place IS NULL
), cursors AS (
  -- By the place that was just looked up.
  UPDATE signer_nonce_cursor k
     SET next_nonce = g.next_nonce,
         start_nonce = g.start_nonce,
         is_doubted = g.is_doubted,
         state = g.cursor_state,
         reason = g.reason,
         fencing_token = g.token,
         updated_at = clock_timestamp()
    FROM judged g
   WHERE g.applies AND k.ctid = g.place AND k.next_nonce = g.next_expected AND k.state = g.state_expected
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
    FROM (SELECT unnest($54::text::bigint[]) AS lane,
                 unnest($55::text::uuid[]) AS tx_id,
                 unnest(string_to_array($56, E'\x1f', '')) AS payload,
                 unnest($57::bytea[]) AS payload_digest,
                 unnest($58::text::bigint[]) AS version,
                 unnest($59::text::text[]) AS state,
                 unnest($60::text::bigint[]) AS nonce,
                 unnest(string_to_array($61, E'\x1f', '')) AS tx_hash,
                 unnest($62::text::int[]) AS journal_count) f
    JOIN judged g ON g.lane = f.lane AND g.applies
   ORDER BY f.lane, f.nonce
), new_attempts AS (
  INSERT INTO tx_attempt
         (tx_id, attempt, chain_id, signer, nonce, purpose, tx_type, gas, fee_cap_wei, tip_wei, raw, tx_hash,
          fencing_token)
  SELECT a.tx_id, a.attempt, g.chain_id, g.signer, a.nonce, a.purpose, a.tx_type, a.gas, a.fee_cap_wei, a.tip_wei,
         a.raw, a.tx_hash, g.token
    FROM (SELECT unnest($33::text::bigint[]) AS lane,
                 unnest($34::text::uuid[]) AS tx_id,
                 unnest($35::text::int[]) AS attempt,
                 unnest($36::text::bigint[]) AS nonce,
                 unnest($37::text::text[]) AS purpose,
                 unnest($38::text::smallint[]) AS tx_type,
                 unnest($39::text::bigint[]) AS gas,
                 unnest($40::text::numeric[]) AS fee_cap_wei,
                 unnest($41::text::numeric[]) AS tip_wei,
                 unnest($42::bytea[]) AS raw,
                 unnest(string_to_array($43, E'\x1f', '')) AS tx_hash) a
    JOIN judged g ON g.lane = a.lane AND g.applies
), journaled AS (
  INSERT INTO journal_sheet (chain_id, signer, moment, tx_ids, events, states, details, node, fencing_token)
  SELECT g.chain_id, g.signer, e.moment, e.tx_ids::uuid[], e.events::text[], e.states::text[], e.details::json, $63,
         g.token
    FROM (SELECT unnest($44::text::bigint[]) AS position,
                 unnest($45::text::bigint[]) AS lane,
                 unnest($46::text::text[]) AS moment,
                 unnest(string_to_array($47, E'\x1f')) AS tx_ids,
                 unnest(string_to_array($48, E'\x1f')) AS events,
                 unnest(string_to_array($49, E'\x1f')) AS states,
                 unnest(string_to_array($50, E'\x1f', '')) AS details) e
    JOIN judged g ON g.lane = e.lane AND g.applies
   ORDER BY e.position
), commands AS (
  UPDATE lane_command d
     SET done_at = clock_timestamp(), outcome = o.outcome
    FROM (SELECT unnest($51::text::bigint[]) AS lane,
                 unnest($52::text::bigint[]) AS id,
                 unnest($53::text[]) AS outcome) o
    JOIN judged g ON g.lane = o.lane AND g.applies
   WHERE d.id = o.id AND d.chain_id = g.chain_id AND d.signer = g.signer
)
SELECT g.lane, g.applies AS applied FROM judged g

-- name: commit_lane
-- Applies what one lane decided, everything or nothing, where that is little: each array has as many rows as it needs.
-- fenced: by the function of this name, which takes the lease row with the token FOR KEY SHARE before all else
-- `applied` is NULL when the lane's term is over.
SELECT 1 AS lane,
       commit_lane(
         ROW($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)::lane_write,
         ARRAY[ROW($11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30)]::tx_change[],
         ARRAY[ROW($31, $32, $33, $34, $35, $36, $37::text::numeric, $38::text::numeric, $39, $40)]::new_attempt[],
         ARRAY[ROW($41, $42::text::uuid[], $43::text::text[], $44::text::text[], $45)]::new_sheet[],
         $46
       ) AS applied

-- name: nonce_register
-- Make a signer nonce-only, unless it is already registered.
-- unfenced: the primary key decides, once and for all
INSERT INTO signer_use (chain_id, signer, used_by) VALUES ($1, $2, 'nonce') ON CONFLICT DO NOTHING

-- name: signer_used_by
-- Say which part uses a signer: the core or the nonce service.
SELECT used_by FROM signer_use WHERE chain_id = $1 AND signer = $2

-- name: nonce_cursor_open
-- Insert a signer's cursor.
-- unfenced: a new row allocates nothing
INSERT INTO nonce_cursor (chain_id, signer, start_nonce, next_nonce, chain_floor)
VALUES ($1, $2, $3, $3, $3)
    ON CONFLICT DO NOTHING

-- name: nonce_cursor_lock
-- Lock a signer's cursor: one allocation at a time. A separate statement, so that the next one sees all earlier commits.
SELECT next_nonce FROM nonce_cursor WHERE chain_id = $1 AND signer = $2 FOR UPDATE

-- name: nonce_take
-- Hold nonces: the smallest released ones first, then the cursor's next. Runs under nonce_cursor_lock.
-- unfenced: the cursor's row lock orders allocations, and the primary key rejects duplicates
WITH gap AS MATERIALIZED (
  SELECT s.nonce
    FROM nonce_slot s
   WHERE s.chain_id = $1 AND s.signer = $2 AND s.state = 'RELEASED'
     AND s.nonce >= (SELECT c.chain_floor FROM nonce_cursor c WHERE c.chain_id = $1 AND c.signer = $2)
   ORDER BY s.nonce
   LIMIT $3
     FOR UPDATE SKIP LOCKED
), reused AS (
  UPDATE nonce_slot s
     SET state = 'HELD', hold = $4, held_at = clock_timestamp(),
         expires_at = clock_timestamp() + make_interval(secs => $5), revision = s.revision + 1
    FROM gap g
   WHERE s.chain_id = $1 AND s.signer = $2 AND s.nonce = g.nonce AND s.state = 'RELEASED'
  RETURNING s.nonce
), moved AS (
  UPDATE nonce_cursor c
     SET next_nonce = greatest(c.next_nonce, $6,
                               (SELECT max(x.nonce) + 1 FROM nonce_slot x WHERE x.chain_id = $1 AND x.signer = $2))
                      + $3 - (SELECT count(*) FROM reused),
         updated_at = clock_timestamp()
   WHERE c.chain_id = $1 AND c.signer = $2 AND (SELECT count(*) FROM reused) < $3
  RETURNING c.next_nonce
), fresh AS (
  INSERT INTO nonce_slot (chain_id, signer, nonce, state, hold, expires_at)
  SELECT $1, $2, n, 'HELD', $4, clock_timestamp() + make_interval(secs => $5)
    FROM moved m, generate_series(m.next_nonce - $3 + (SELECT count(*) FROM reused), m.next_nonce - 1) AS n
      ON CONFLICT DO NOTHING
  RETURNING nonce
)
SELECT nonce FROM reused UNION ALL SELECT nonce FROM fresh

-- name: nonce_take_gaps
-- Hold the smallest released nonces, if there are any.
-- unfenced: a released row goes to one hold, under its row lock
WITH gap AS MATERIALIZED (
  SELECT s.nonce
    FROM nonce_slot s
   WHERE s.chain_id = $1 AND s.signer = $2 AND s.state = 'RELEASED'
     AND s.nonce >= (SELECT c.chain_floor FROM nonce_cursor c WHERE c.chain_id = $1 AND c.signer = $2)
   ORDER BY s.nonce
   LIMIT $3
     FOR UPDATE SKIP LOCKED
)
UPDATE nonce_slot s
   SET state = 'HELD', hold = $4, held_at = clock_timestamp(),
       expires_at = clock_timestamp() + make_interval(secs => $5), revision = s.revision + 1
  FROM gap g
 WHERE s.chain_id = $1 AND s.signer = $2 AND s.nonce = g.nonce AND s.state = 'RELEASED'
RETURNING s.nonce

-- name: nonce_occupy
-- Hold nonces that Redis issued; nonces that are already stored are missing from the result.
-- unfenced: the primary key gives each nonce to one hold
INSERT INTO nonce_slot (chain_id, signer, nonce, state, hold, expires_at)
SELECT o.chain_id, o.signer, o.nonce, 'HELD', o.hold, clock_timestamp() + make_interval(secs => o.hold_for_s)
  FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::uuid[], $5::float8[])
       AS o (chain_id, signer, nonce, hold, hold_for_s)
 ORDER BY o.chain_id, o.signer, o.nonce
    ON CONFLICT DO NOTHING
RETURNING chain_id, signer, nonce, hold

-- name: nonce_take_leased
-- Hold nonces of many signers for the process that holds their leases: released ones first, then the cursor's next.
-- fenced: by FOR KEY SHARE on the lease row with the token, taken before all writes and held until the commit
WITH lane AS MATERIALIZED (
  SELECT *
    FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::uuid[], $7::float8[])
         AS l (chain_id, signer, token, wanted, floor_nonce, hold, hold_for_s)
), held AS MATERIALIZED (
  SELECT l.*
    FROM signer_lease s
    JOIN lane l ON s.chain_id = l.chain_id AND s.signer = l.signer AND s.fencing_token = l.token
     FOR KEY SHARE OF s
), gap AS MATERIALIZED (
  SELECT h.chain_id, h.signer, h.token, h.hold, h.hold_for_s, g.nonce
    FROM held h
   CROSS JOIN LATERAL (
     SELECT s.nonce
       FROM nonce_slot s
      WHERE s.chain_id = h.chain_id AND s.signer = h.signer AND s.state = 'RELEASED'
        AND s.nonce >= (SELECT c.chain_floor FROM nonce_cursor c WHERE c.chain_id = h.chain_id AND c.signer = h.signer)
      ORDER BY s.nonce
      LIMIT h.wanted) g
), reused AS (
  UPDATE nonce_slot s
     SET state = 'HELD', hold = g.hold, held_at = clock_timestamp(), revision = s.revision + 1,
         expires_at = clock_timestamp() + make_interval(secs => g.hold_for_s), fencing_token = g.token
    FROM gap g
   WHERE s.chain_id = g.chain_id AND s.signer = g.signer AND s.nonce = g.nonce AND s.state = 'RELEASED'
  RETURNING s.chain_id, s.signer, s.nonce
), got AS MATERIALIZED (
  SELECT h.*, h.wanted - (SELECT count(*) FROM reused r WHERE r.chain_id = h.chain_id AND r.signer = h.signer) AS missing
    FROM held h
), moved AS (
  UPDATE nonce_cursor c
     SET next_nonce = greatest(c.next_nonce, o.floor_nonce) + o.missing,
         fencing_token = o.token, updated_at = clock_timestamp()
    FROM got o
   WHERE c.chain_id = o.chain_id AND c.signer = o.signer AND o.missing > 0
  RETURNING c.chain_id, c.signer, c.next_nonce, o.missing, o.hold, o.hold_for_s, o.token
), fresh AS (
  INSERT INTO nonce_slot (chain_id, signer, nonce, state, hold, expires_at, fencing_token)
  SELECT m.chain_id, m.signer, n, 'HELD', m.hold, clock_timestamp() + make_interval(secs => m.hold_for_s), m.token
    FROM moved m, generate_series(m.next_nonce - m.missing, m.next_nonce - 1) AS n
  RETURNING chain_id, signer, nonce
)
SELECT chain_id, signer, nonce FROM reused
 UNION ALL
SELECT chain_id, signer, nonce FROM fresh
 UNION ALL
SELECT chain_id, signer, NULL FROM held

-- name: nonce_mark
-- Move holds to a new state, each only by a legal transition and only with the hold's own token.
-- unfenced: the hold's token is checked; a hold that has ended is rejected
WITH asked AS MATERIALIZED (
  SELECT *
    FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::uuid[], $5::text[], $6::text[])
         WITH ORDINALITY AS a (chain_id, signer, nonce, hold, state, tx_hash, position)
), locked AS MATERIALIZED (
  SELECT a.*
    FROM nonce_slot s
    JOIN asked a ON s.chain_id = a.chain_id AND s.signer = a.signer AND s.nonce = a.nonce AND s.hold = a.hold
   ORDER BY s.chain_id, s.signer, s.nonce
     FOR NO KEY UPDATE OF s
)
UPDATE nonce_slot s
   SET state = l.state, tx_hash = coalesce(l.tx_hash, s.tx_hash), revision = s.revision + 1
  FROM locked l
 WHERE s.chain_id = l.chain_id AND s.signer = l.signer AND s.nonce = l.nonce AND s.hold = l.hold
   AND (s.state = 'HELD'
        OR s.state = 'SUBMITTED' AND l.state = 'CONSUMED' AND coalesce(l.tx_hash, s.tx_hash) = s.tx_hash)
RETURNING l.position

-- name: nonce_slots
-- Load the state of nonces.
SELECT a.position, s.nonce, s.state, s.hold, s.tx_hash
  FROM unnest($1::bigint[], $2::text[], $3::bigint[]) WITH ORDINALITY AS a (chain_id, signer, nonce, position)
  JOIN nonce_slot s ON s.chain_id = a.chain_id AND s.signer = a.signer AND s.nonce = a.nonce

-- name: nonce_reclaim
-- Release expired holds, unless they have a hash or the chain has seen their nonce; store the chain's nonce as the floor.
-- unfenced: the database's clock and the row's own state decide, whichever process runs it
WITH floor AS (
  UPDATE nonce_cursor c SET chain_floor = $3 WHERE c.chain_id = $1 AND c.signer = $2 AND c.chain_floor <> $3
), due AS MATERIALIZED (
  SELECT s.nonce
    FROM nonce_slot s
   WHERE s.chain_id = $1 AND s.signer = $2 AND s.state = 'HELD' AND s.expires_at < clock_timestamp()
     AND s.tx_hash IS NULL AND s.nonce >= $3
   ORDER BY s.nonce
   LIMIT $4
     FOR UPDATE SKIP LOCKED
)
UPDATE nonce_slot s
   SET state = 'RELEASED', revision = s.revision + 1
  FROM due d
 WHERE s.chain_id = $1 AND s.signer = $2 AND s.nonce = d.nonce
RETURNING s.nonce

-- name: nonce_heal
-- Release nonces that were issued but never stored: below an old row, not below the chain's nonce, in no live block.
-- unfenced: the primary key rejects a process that stores one of them later
INSERT INTO nonce_slot (chain_id, signer, nonce, state, expires_at)
SELECT $1, $2, n, 'RELEASED', clock_timestamp()
  FROM nonce_cursor c
 CROSS JOIN LATERAL (
   SELECT max(x.nonce) AS top
     FROM nonce_slot x
    WHERE x.chain_id = $1 AND x.signer = $2 AND x.held_at < clock_timestamp() - make_interval(secs => $4)) old
 CROSS JOIN generate_series(greatest(c.start_nonce, $3, old.top - $5), old.top) AS n
 WHERE c.chain_id = $1 AND c.signer = $2
   AND NOT EXISTS (SELECT 1 FROM nonce_slot s WHERE s.chain_id = $1 AND s.signer = $2 AND s.nonce = n)
   AND NOT EXISTS (SELECT 1
                     FROM nonce_block b
                    WHERE b.chain_id = $1 AND b.signer = $2 AND b.retired_at IS NULL
                      AND n >= b.first_nonce AND n < b.past_nonce)
    ON CONFLICT DO NOTHING
RETURNING nonce

-- name: nonce_known_next
-- Read the first nonce above all that are stored.
SELECT greatest(c.next_nonce,
                (SELECT max(s.nonce) + 1 FROM nonce_slot s WHERE s.chain_id = $1 AND s.signer = $2)) AS next_nonce
  FROM nonce_cursor c
 WHERE c.chain_id = $1 AND c.signer = $2

-- name: nonce_redis_off
-- Switch Redis off for a signer in all processes, or prolong that. Runs under nonce_cursor_lock.
-- unfenced: it allocates nothing; processes that allocate read it under the same lock
WITH now AS MATERIALIZED (
  SELECT clock_timestamp() AS t
)
UPDATE nonce_cursor c
   SET redis_epoch = c.redis_epoch + CASE WHEN c.redis_off_until > now.t THEN 0 ELSE 1 END,
       redis_off_from = CASE WHEN c.redis_off_until > now.t THEN c.redis_off_from
                             ELSE now.t + make_interval(secs => $3) END,
       redis_off_until = greatest(c.redis_off_until, now.t + make_interval(secs => $4::float8))
  FROM now
 WHERE c.chain_id = $1 AND c.signer = $2
   AND (c.redis_off_until > now.t + make_interval(secs => $4::float8 / 2)) IS NOT TRUE
RETURNING c.redis_epoch

-- name: nonce_redis_status
-- Read when Redis goes off for signers and when it is on again, in seconds from now; it is on if the end is in the past.
WITH now AS MATERIALIZED (
  SELECT clock_timestamp() AS t
)
SELECT c.chain_id, c.signer, c.redis_epoch,
       coalesce(extract(epoch FROM c.redis_off_from - now.t), 0)::float8 AS begins_in_s,
       coalesce(extract(epoch FROM c.redis_off_until - now.t), 0)::float8 AS ends_in_s
  FROM now, unnest($1::bigint[], $2::text[]) AS a (chain_id, signer)
  JOIN nonce_cursor c ON c.chain_id = a.chain_id AND c.signer = a.signer

-- name: nonce_live_slots
-- Load a signer's nonces that are not consumed, the largest first.
SELECT s.nonce, s.state, s.hold, s.tx_hash, s.revision,
       extract(epoch FROM s.expires_at - clock_timestamp())::float8 AS expires_in_s
  FROM nonce_slot s
 WHERE s.chain_id = $1 AND s.signer = $2 AND s.state IN ('HELD', 'SUBMITTED', 'RELEASED')
 ORDER BY s.nonce DESC
 LIMIT $3

-- name: nonce_last_revision
-- Read the largest revision of a signer's rows.
SELECT coalesce(max(s.revision), 0) FROM nonce_slot s WHERE s.chain_id = $1 AND s.signer = $2

-- name: nonce_write_behind
-- Store states that were decided in Redis; an older revision never replaces a newer one, and a hash is never lost.
-- unfenced: revisions order the writes of one nonce
INSERT INTO nonce_slot AS s (chain_id, signer, nonce, state, hold, tx_hash, expires_at, revision)
SELECT w.chain_id, w.signer, w.nonce, w.state, w.hold, w.tx_hash,
       clock_timestamp() + make_interval(secs => w.expires_in_s), w.revision
  FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[], $5::uuid[], $6::text[], $7::float8[], $8::bigint[])
       AS w (chain_id, signer, nonce, state, hold, tx_hash, expires_in_s, revision)
 ORDER BY w.chain_id, w.signer, w.nonce
    ON CONFLICT (chain_id, signer, nonce) DO UPDATE
   SET state = excluded.state, hold = excluded.hold, tx_hash = excluded.tx_hash, expires_at = excluded.expires_at,
       revision = excluded.revision
 WHERE s.revision < excluded.revision AND s.state <> 'CONSUMED'
   AND (s.state <> 'SUBMITTED' OR excluded.state = 'CONSUMED' AND excluded.tx_hash = s.tx_hash)
RETURNING s.chain_id, s.signer, s.nonce

-- name: nonce_block_take
-- Allocate a new block to one process, above all nonces that are stored.
-- unfenced: the cursor's row lock orders blocks, and they never overlap
WITH moved AS (
  UPDATE nonce_cursor c
     SET next_nonce = greatest(c.next_nonce, $3,
                               (SELECT max(x.nonce) + 1 FROM nonce_slot x WHERE x.chain_id = $1 AND x.signer = $2)) + $4,
         updated_at = clock_timestamp()
   WHERE c.chain_id = $1 AND c.signer = $2
  RETURNING c.next_nonce
)
INSERT INTO nonce_block (chain_id, signer, first_nonce, past_nonce, owner)
SELECT $1, $2, m.next_nonce - $4, m.next_nonce, $5 FROM moved m
RETURNING block_id, first_nonce, past_nonce

-- name: nonce_block_flush
-- Store holds that were allocated from blocks, and the blocks' heartbeat; nothing is stored for a retired block.
-- unfenced: the block's row, which names its owner and is not retired, is the fence
WITH mine AS (
  UPDATE nonce_block b
     SET seen_at = clock_timestamp()
   WHERE b.owner = $1 AND b.retired_at IS NULL
     AND b.block_id = ANY (ARRAY(SELECT k.block_id FROM nonce_block k
                                  WHERE k.owner = $1 AND k.block_id = ANY ($2::bigint[]) ORDER BY k.block_id))
  RETURNING b.block_id
), kept AS (
  INSERT INTO nonce_slot (chain_id, signer, nonce, state, hold, expires_at)
  SELECT f.chain_id, f.signer, f.nonce, 'HELD', f.hold, clock_timestamp() + make_interval(secs => f.expires_in_s)
    FROM unnest($3::bigint[], $4::bigint[], $5::text[], $6::bigint[], $7::uuid[], $8::float8[])
         AS f (block_id, chain_id, signer, nonce, hold, expires_in_s)
    JOIN mine m ON m.block_id = f.block_id
      ON CONFLICT DO NOTHING
  RETURNING 1
)
SELECT block_id, (SELECT count(*) FROM kept) AS kept FROM mine

-- name: nonce_block_give_back
-- Retire blocks of this owner and release their unused nonces to all processes.
-- unfenced: the block's row, which names its owner and is not retired, is the fence
WITH mine AS (
  UPDATE nonce_block b
     SET retired_at = clock_timestamp()
    FROM unnest($2::bigint[], $3::bigint[]) AS e (block_id, next_nonce)
   WHERE b.block_id = e.block_id AND b.owner = $1 AND b.retired_at IS NULL
  RETURNING b.block_id, b.chain_id, b.signer, e.next_nonce, b.past_nonce
), given_back AS (
  INSERT INTO nonce_slot (chain_id, signer, nonce, state, expires_at)
  SELECT m.chain_id, m.signer, n, 'RELEASED', clock_timestamp()
    FROM mine m, generate_series(m.next_nonce, m.past_nonce - 1) AS n
      ON CONFLICT DO NOTHING
  RETURNING 1
)
SELECT block_id, (SELECT count(*) FROM given_back) AS given_back FROM mine

-- name: nonce_block_retire_dead
-- Retire blocks without a recent heartbeat; from then on their owner can't write to them.
-- unfenced: this statement fences the old owner
UPDATE nonce_block b
   SET retired_at = clock_timestamp()
 WHERE b.chain_id = $1 AND b.signer = $2 AND b.retired_at IS NULL
   AND b.seen_at < clock_timestamp() - make_interval(secs => $3)
RETURNING b.block_id

-- name: nonce_submitted
-- List a page of the submitted nonces of one chain, by signer and nonce.
SELECT s.signer, s.nonce, s.hold, s.tx_hash
  FROM nonce_slot s
 WHERE s.chain_id = $1 AND s.state = 'SUBMITTED' AND (s.signer, s.nonce) > ($2::text, $3::bigint)
 ORDER BY s.signer, s.nonce
 LIMIT $4

-- name: nonce_signers
-- List a page of the signers of the nonce service on one chain.
SELECT signer FROM nonce_cursor WHERE chain_id = $1 AND signer > $2 ORDER BY signer LIMIT $3

-- name: nonce_has_gaps
-- Find which of the given signers have released nonces that can be allocated again.
SELECT DISTINCT a.chain_id, a.signer
  FROM unnest($1::bigint[], $2::text[]) AS a (chain_id, signer)
  JOIN nonce_cursor c ON c.chain_id = a.chain_id AND c.signer = a.signer
 WHERE EXISTS (SELECT 1 FROM nonce_slot s
                WHERE s.chain_id = a.chain_id AND s.signer = a.signer AND s.state = 'RELEASED'
                  AND s.nonce >= c.chain_floor)

-- name: nonce_status
-- Read a signer's cursor and the number of nonces in each state.
SELECT c.start_nonce, c.next_nonce, c.chain_floor, n.held, n.expired, n.submitted, n.consumed, n.released,
       n.first_gap, n.top
  FROM nonce_cursor c
 CROSS JOIN LATERAL (
   SELECT count(*) FILTER (WHERE s.state = 'HELD') AS held,
          count(*) FILTER (WHERE s.state = 'HELD' AND s.expires_at < clock_timestamp()) AS expired,
          count(*) FILTER (WHERE s.state = 'SUBMITTED') AS submitted,
          count(*) FILTER (WHERE s.state = 'CONSUMED') AS consumed,
          count(*) FILTER (WHERE s.state = 'RELEASED') AS released,
          min(s.nonce) FILTER (WHERE s.state = 'RELEASED') AS first_gap,
          max(s.nonce) AS top
     FROM nonce_slot s
    WHERE s.chain_id = $1 AND s.signer = $2) n
 WHERE c.chain_id = $1 AND c.signer = $2

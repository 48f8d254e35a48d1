-- name: events_read
-- Read the journal batches after a position. In the newest epoch no batch can appear below the oldest running database
-- transaction; in older epochs no batch can appear at all. The position may lie inside a batch, whose own id is then smaller.
SELECT s.epoch, s.xid::text AS xid, s.id, s.at, s.chain_id, s.signer, s.signers, s.tx_ids, s.events, s.states, s.details
  FROM journal_batch s
 WHERE (s.epoch, s.xid, s.id) > ($1::bigint, $2::text::xid8, $3::bigint - 256)
   AND (s.epoch, s.xid) < ((SELECT max(h.epoch) FROM database_history h), pg_snapshot_xmin(pg_current_snapshot()))
 ORDER BY s.epoch, s.xid, s.id
 LIMIT $4

-- name: events_newest
-- Read the position of the newest batch that can be read.
SELECT s.epoch, s.xid::text AS xid, s.id, cardinality(s.tx_ids) * cardinality(s.events) AS entries
  FROM journal_batch s
 WHERE (s.epoch, s.xid) < ((SELECT max(h.epoch) FROM database_history h), pg_snapshot_xmin(pg_current_snapshot()))
 ORDER BY s.epoch DESC, s.xid DESC, s.id DESC
 LIMIT 1

-- name: events_floor
-- Read whether a batch after a position was removed.
SELECT (f.epoch, f.xid, f.id) > ($1::bigint, $2::text::xid8, $3::bigint) FROM event_floor f

-- name: events_prune
-- Remove old batches whose transactions have all ended that long ago, among the batches that follow a position, and record the
-- last one. The lock lets one node do it at a time. Batches of live transactions stay: they are part of their history.
-- unfenced: no signer's record is changed; only facts older than the retention are removed, and nothing refers to them
WITH gate AS (
  SELECT pg_try_advisory_xact_lock(7021986640227328) AS is_open
), examined AS (
  SELECT s.epoch, s.xid, s.id, s.at, s.tx_ids
    FROM journal_batch s
   WHERE (s.epoch, s.xid, s.id) > ($1::bigint, $2::text::xid8, $3::bigint)
     AND (s.epoch, s.xid) < ((SELECT max(h.epoch) FROM database_history h), pg_snapshot_xmin(pg_current_snapshot()))
   ORDER BY s.epoch, s.xid, s.id
   LIMIT $4
), old AS (
  SELECT e.epoch, e.xid, e.id
    FROM examined e
   CROSS JOIN gate
   WHERE gate.is_open
     AND e.at < clock_timestamp() - make_interval(secs => $5)
     AND NOT EXISTS (SELECT 1
                       FROM managed_tx t
                      WHERE t.tx_id = ANY (e.tx_ids)
                        AND (t.is_live OR t.finished_at >= clock_timestamp() - make_interval(secs => $5)))
), removed AS (
  DELETE FROM journal_batch s
   USING old o
   WHERE (s.epoch, s.xid, s.id) = (o.epoch, o.xid, o.id)
  RETURNING s.epoch, s.xid, s.id + cardinality(s.tx_ids) * cardinality(s.events) - 1 AS id
), floored AS (
  INSERT INTO event_floor AS f (epoch, xid, id)
  SELECT r.epoch, r.xid, r.id FROM removed r ORDER BY r.epoch DESC, r.xid DESC, r.id DESC LIMIT 1
      ON CONFLICT (is_only) DO UPDATE
     SET epoch = excluded.epoch, xid = excluded.xid, id = excluded.id
   WHERE (f.epoch, f.xid, f.id) < (excluded.epoch, excluded.xid, excluded.id)
)
SELECT l.epoch, l.xid::text AS xid, l.id, (SELECT count(*) FROM removed) AS removed,
       (SELECT count(*) FROM examined) AS examined, (SELECT is_open FROM gate) AS is_open,
       l.at < clock_timestamp() - make_interval(secs => $5) AS is_old
  FROM examined l
 ORDER BY l.epoch DESC, l.xid DESC, l.id DESC
 LIMIT 1

-- name: node_join
-- Register this process under a node name, if the name is new, its row has expired, or the given incarnation that holds it has
-- sent no heartbeat since the given time. The journal gets an entry, and one for the process that had the name and did not leave.
-- unfenced: no signer's record; the table only decides which node tries first to acquire a lease
WITH earlier AS (
  SELECT o.incarnation, o.expires_at > '-infinity' AS is_present
    FROM fencepost_node o
   WHERE o.node_id = $1
     FOR UPDATE
), joined AS (
  INSERT INTO fencepost_node AS n
         (node_id, incarnation, url, mode, serves, version, started_at, heartbeat_at, expires_at)
  SELECT $1, $2, $3, $4, $5, $6, clock_timestamp(), clock_timestamp(),
         clock_timestamp() + make_interval(secs => $7)
    FROM (SELECT count(*) FROM earlier) AS locked -- so that the earlier row is read before it is replaced
      ON CONFLICT (node_id) DO UPDATE
     SET incarnation = excluded.incarnation, url = excluded.url, mode = excluded.mode, serves = excluded.serves,
         version = excluded.version, started_at = excluded.started_at, heartbeat_at = excluded.heartbeat_at,
         expires_at = excluded.expires_at
   WHERE n.incarnation = excluded.incarnation
      OR n.expires_at < clock_timestamp()
      OR (n.incarnation = $8 AND n.heartbeat_at = $9)
  RETURNING n.node_id
), noted AS (
  INSERT INTO journal_batch (chain_id, tx_ids, events, states, details, node)
  SELECT 0, '{NULL}', ARRAY[e.name], '{NULL}', json_build_array(json_build_object('node', $1::text, 'reason', e.reason)), $1
    FROM joined
   CROSS JOIN (SELECT 1 AS position, 'NodeLeft' AS name, 'another process took its name' AS reason
                 FROM earlier
                WHERE is_present AND incarnation <> $2
                UNION ALL
               SELECT 2, 'NodeJoined', NULL
                WHERE NOT EXISTS (SELECT 1 FROM earlier WHERE is_present AND incarnation = $2)) AS e
   ORDER BY e.position
)
SELECT node_id FROM joined

-- name: node_beat
-- Record a heartbeat; no row means that another process has taken the name. Mark the nodes whose heartbeats have stopped: the first
-- node that sees it writes the journal entry. A marked node whose heartbeats return has joined again.
-- unfenced: no signer's record; bound to the process by its incarnation, or only marks rows that have expired
WITH earlier AS (
  SELECT o.expires_at > '-infinity' AS is_present
    FROM fencepost_node o
   WHERE o.node_id = $1 AND o.incarnation = $2
     FOR UPDATE
), beaten AS (
  UPDATE fencepost_node
     SET heartbeat_at = clock_timestamp(), expires_at = clock_timestamp() + make_interval(secs => $3),
         silent_chains = $4
   WHERE node_id = $1 AND incarnation = $2 AND EXISTS (SELECT 1 FROM earlier)
  RETURNING node_id
), expired AS (
  SELECT o.node_id, o.incarnation
    FROM fencepost_node o
   WHERE o.node_id <> $1 AND o.expires_at < clock_timestamp() AND o.expires_at > '-infinity'
   ORDER BY o.node_id
   LIMIT 100
     FOR UPDATE SKIP LOCKED
), lost AS (
  UPDATE fencepost_node n
     SET expires_at = '-infinity'
    FROM expired e
   WHERE n.node_id = e.node_id AND n.incarnation = e.incarnation
  RETURNING n.node_id
), noted AS (
  INSERT INTO journal_batch (chain_id, tx_ids, events, states, details, node)
  SELECT 0, '{NULL}', ARRAY[e.name], '{NULL}', json_build_array(json_build_object('node', e.node_id, 'reason', e.reason)), $1
    FROM (SELECT node_id, 'NodeLeft' AS name, 'its heartbeats stopped' AS reason FROM lost
           UNION ALL
          SELECT b.node_id, 'NodeJoined', 'its heartbeats returned' FROM beaten b WHERE NOT (SELECT is_present FROM earlier)) AS e
)
SELECT node_id FROM beaten

-- name: node_leave
-- Release the node name, and record it in the journal.
-- unfenced: no signer's record; bound to the process by its incarnation
WITH gone AS (
  UPDATE fencepost_node
     SET expires_at = '-infinity'
   WHERE node_id = $1 AND incarnation = $2 AND expires_at > '-infinity'
  RETURNING node_id
), noted AS (
  INSERT INTO journal_batch (chain_id, tx_ids, events, states, details, node)
  SELECT 0, '{NULL}', '{NodeLeft}', '{NULL}', json_build_array(json_build_object('node', node_id, 'reason', 'it was stopped')), $1
    FROM gone
)
SELECT node_id FROM gone

-- name: nodes_forget
-- Delete nodes whose last heartbeat is more than seven days old.
-- unfenced: no signer's record; a name has no token that could restart
DELETE FROM fencepost_node
 WHERE expires_at < clock_timestamp() AND heartbeat_at < clock_timestamp() - interval '7 days'

-- name: nodes_list
-- List all known nodes, live ones first.
SELECT n.node_id, n.incarnation, n.url, n.mode, n.serves, n.version, n.started_at, n.heartbeat_at,
       n.expires_at > clock_timestamp() AS is_live,
       (SELECT count(*)
          FROM signer_lease s
         WHERE s.incarnation = n.incarnation AND s.expires_at > clock_timestamp()) AS signers
  FROM fencepost_node n
 ORDER BY is_live DESC, n.node_id
 LIMIT 10000

-- name: node_address
-- Find the URL of a live node.
SELECT n.url, n.incarnation
  FROM fencepost_node n
 WHERE n.node_id = $1 AND n.url IS NOT NULL AND n.expires_at > clock_timestamp()

-- name: nodes_live
-- List the live nodes.
SELECT n.node_id, n.incarnation, n.mode, n.serves, n.silent_chains
  FROM fencepost_node n
 WHERE n.expires_at > clock_timestamp()
 ORDER BY n.node_id
 LIMIT 10000

-- name: rights_missing
-- List which of these privileges on tables ($1, $2) and which USAGE of sequences ($3) the current role lacks. It can't see a
-- table if it may not use the table's schema.
SELECT w.name, w.privilege, current_user::text AS role
  FROM unnest($1::text[], $2::text[]) AS w (name, privilege)
 WHERE has_table_privilege(to_regclass(w.name), w.privilege) IS NOT TRUE
 UNION ALL
SELECT s.name, 'USAGE', current_user::text
  FROM unnest($3::text[]) AS s (name)
 WHERE has_sequence_privilege(to_regclass(s.name), 'USAGE') IS NOT TRUE
 ORDER BY name, privilege

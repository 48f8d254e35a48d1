-- name: node_join
-- Register this process under a node name, if the name is new, its row has expired, or the given incarnation that holds it has
-- sent no heartbeat since the given time.
-- unfenced: no signer's record; the table only decides which node tries first to acquire a lease
INSERT INTO fencepost_node AS n
       (node_id, incarnation, url, mode, serves, version, started_at, heartbeat_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp(), clock_timestamp(),
        clock_timestamp() + make_interval(secs => $7))
    ON CONFLICT (node_id) DO UPDATE
   SET incarnation = excluded.incarnation, url = excluded.url, mode = excluded.mode, serves = excluded.serves,
       version = excluded.version, started_at = excluded.started_at, heartbeat_at = excluded.heartbeat_at,
       expires_at = excluded.expires_at
 WHERE n.incarnation = excluded.incarnation
    OR n.expires_at < clock_timestamp()
    OR (n.incarnation = $8 AND n.heartbeat_at = $9)
RETURNING n.node_id

-- name: node_beat
-- Record a heartbeat; no row means that another process has taken the name.
-- unfenced: no signer's record; bound to the process by its incarnation
UPDATE fencepost_node
   SET heartbeat_at = clock_timestamp(), expires_at = clock_timestamp() + make_interval(secs => $3),
       silent_chains = $4
 WHERE node_id = $1 AND incarnation = $2
RETURNING node_id

-- name: node_leave
-- Release the node name.
-- unfenced: no signer's record; bound to the process by its incarnation
UPDATE fencepost_node
   SET expires_at = '-infinity'
 WHERE node_id = $1 AND incarnation = $2
RETURNING node_id

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

-- name: node_join
-- Takes a name for this process, if nobody alive has it: it is new, its time is over, or it was seen not to move.
-- unfenced: no signer's record; the table decides nothing but who is asked first
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
-- Says that this process is alive; no row means that another one has its name.
-- unfenced: no signer's record; bound to the process by its incarnation
UPDATE fencepost_node
   SET heartbeat_at = clock_timestamp(), expires_at = clock_timestamp() + make_interval(secs => $3)
 WHERE node_id = $1 AND incarnation = $2
RETURNING node_id

-- name: node_leave
-- Gives the name back at once.
-- unfenced: no signer's record; bound to the process by its incarnation
UPDATE fencepost_node
   SET expires_at = '-infinity'
 WHERE node_id = $1 AND incarnation = $2
RETURNING node_id

-- name: nodes_forget
-- Removes nodes that were last heard of days ago.
-- unfenced: no signer's record; a name carries no token that could start again
DELETE FROM fencepost_node
 WHERE expires_at < clock_timestamp() AND heartbeat_at < clock_timestamp() - interval '7 days'

-- name: nodes_list
-- All nodes that are known, those alive first.
SELECT n.node_id, n.incarnation, n.url, n.mode, n.serves, n.version, n.started_at, n.heartbeat_at,
       n.expires_at > clock_timestamp() AS is_live,
       (SELECT count(*)
          FROM signer_lease s
         WHERE s.incarnation = n.incarnation AND s.expires_at > clock_timestamp()) AS signers
  FROM fencepost_node n
 ORDER BY is_live DESC, n.node_id
 LIMIT 10000

-- name: node_place
-- Where a live node is reached.
SELECT n.url, n.incarnation
  FROM fencepost_node n
 WHERE n.node_id = $1 AND n.url IS NOT NULL AND n.expires_at > clock_timestamp()

-- name: nodes_live
-- The nodes that are alive.
SELECT n.node_id, n.incarnation, n.mode, n.serves
  FROM fencepost_node n
 WHERE n.expires_at > clock_timestamp()
 ORDER BY n.node_id
 LIMIT 10000

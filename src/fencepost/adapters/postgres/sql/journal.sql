-- name: journal_page
-- What happened after a place in the journal, in an order in which nothing appears late; ends where writers are at work.
SELECT id, xid, at, chain_id, signer, tx_id, event, state, detail, node, fencing_token
  FROM journal
 WHERE (xid, id) > ($1::xid8, $2::bigint)
   AND xid < pg_snapshot_xmin(pg_current_snapshot())
 ORDER BY xid, id
 LIMIT $3

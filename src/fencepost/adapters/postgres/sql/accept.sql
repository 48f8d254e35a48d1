-- name: accept_requests
-- Store new requests with their first journal row. The statement skips known requests, requests of signers in PROTECT, requests
-- of signers that belong to the nonce service, and requests of a new signer that another node is registering at this moment.
-- unfenced: any node accepts; a QUEUED row has no nonce and claims nothing
-- $1 is the node, $2 the most requests to list in `waiting`; `new_request` has the requests (`sources.py`).
-- `seq` follows the order of the arguments. Rows are inserted by request id, so that two nodes that insert the same requests in
-- different orders can't deadlock.
-- `waiting` lists the requests of the signer that were queued before. The statement does not see its own rows; it sees every row
-- that was acknowledged before it began. It does not use EXISTS, because the planner may turn that into a hash over the whole table.
-- It reads from the newest row down: queued rows are mostly newer than rows in flight.
WITH {{new_request}}, asked AS MATERIALIZED (
  SELECT nextval('managed_tx_seq_seq') AS seq, r.* FROM new_request r
), signers AS MATERIALIZED (
  SELECT a.chain_id, a.signer, u.used_by,
         (SELECT c.state FROM signer_nonce_cursor c WHERE c.chain_id = a.chain_id AND c.signer = a.signer)
         IS NOT DISTINCT FROM 'PROTECT' AS is_protected,
         (SELECT string_agg(w.seq::text, ',')
            FROM (SELECT q.seq FROM managed_tx q
                   WHERE q.chain_id = a.chain_id AND q.signer = a.signer AND q.is_live AND q.state = 'QUEUED'
                   ORDER BY q.seq DESC LIMIT $2) w) AS waiting
    FROM (SELECT DISTINCT chain_id, signer FROM asked) a
    LEFT JOIN signer_use u ON u.chain_id = a.chain_id AND u.signer = a.signer
), met AS (
  INSERT INTO signer_use (chain_id, signer, used_by)
  SELECT s.chain_id, s.signer, 'core' FROM signers s WHERE s.used_by IS NULL ORDER BY 1, 2
      ON CONFLICT DO NOTHING
  RETURNING chain_id, signer
), takers AS (
  SELECT s.chain_id, s.signer FROM signers s WHERE s.used_by = 'core' AND NOT s.is_protected
   UNION ALL
  SELECT s.chain_id, s.signer FROM signers s JOIN met m ON m.chain_id = s.chain_id AND m.signer = s.signer
   WHERE NOT s.is_protected
), created AS (
  INSERT INTO managed_tx (seq, payload_digest, journal_count, {{request_names}})
         OVERRIDING SYSTEM VALUE
  SELECT a.seq, sha256(convert_to(a.payload, 'UTF8')), 1,
         {{request_values}}
    FROM asked a
    JOIN takers t ON t.chain_id = a.chain_id AND t.signer = a.signer
   ORDER BY a.chain_id, a.signer, a.request_id COLLATE "C", a.seq
      ON CONFLICT (chain_id, signer, request_id) DO NOTHING
  RETURNING tx_id, chain_id, signer, seq
), journaled AS (
  INSERT INTO journal_batch (chain_id, signers, id_prefix, tx_ids, events, states, node)
  SELECT chain_id, array_agg(signer::text), left(tx_id::text, 11), array_agg(tx_id), '{Receive}', '{QUEUED}', $1
    FROM created
   GROUP BY chain_id, left(tx_id::text, 11), seq / 64 -- as many as fit into half a page
)
SELECT c.tx_id, c.seq, s.waiting FROM created c JOIN signers s ON s.chain_id = c.chain_id AND s.signer = c.signer

-- name: requests_known
-- Find the transactions stored under the given request ids. A separate statement, so that it sees commits made meanwhile.
SELECT a.position, t.tx_id, t.payload_digest
  FROM unnest($1::bigint[], $2::text[], $3::text[]) WITH ORDINALITY AS a (chain_id, signer, request_id, position)
  JOIN managed_tx t ON t.chain_id = a.chain_id AND t.signer = a.signer AND t.request_id = a.request_id

-- name: requests_stored
-- Find which of these transactions are stored: an earlier try that timed out may have stored them.
SELECT t.tx_id FROM managed_tx t WHERE t.tx_id = ANY ($1::uuid[])

-- name: protect_reasons
-- Say why signers accept no new requests: PROTECT, or owned by the nonce service.
SELECT c.chain_id, c.signer, c.reason, false AS is_nonce_only
  FROM signer_nonce_cursor c
  JOIN unnest($1::bigint[], $2::text[]) AS a (chain_id, signer) ON a.chain_id = c.chain_id AND a.signer = c.signer
 WHERE c.state = 'PROTECT'
 UNION ALL
SELECT u.chain_id, u.signer, 'it is nonce-only: the nonce service allocates its nonces, so Fencepost can''t send for it', true
  FROM signer_use u
  JOIN unnest($1::bigint[], $2::text[]) AS a (chain_id, signer) ON a.chain_id = u.chain_id AND a.signer = u.signer
 WHERE u.used_by = 'nonce'

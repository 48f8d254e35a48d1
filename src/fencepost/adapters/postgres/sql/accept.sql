-- name: accept_requests
-- Stores requests that are new, with their first journal row; known ones and those of protected signers are left out,
-- and so are those of signers that the nonce service has, or that somebody else met first just now.
-- unfenced: any node accepts; a QUEUED row has no nonce and claims nothing
-- Numbers follow the order of asking; rows go in by request id, so that two nodes with the same requests in different
-- order wait for each other one way only.
-- `waiting`: which others of the signer were queued before, if any. Its own rows are not visible to the statement, and whatever was
-- acknowledged before it began is. Not EXISTS: that may be planned as a hash of all that there is, read for every statement.
-- From the newest on: what is queued mostly came after what is in flight.
WITH asked AS MATERIALIZED (
  SELECT nextval('managed_tx_seq_seq') AS seq, a.*
    FROM (SELECT unnest($1::text::uuid[]) AS tx_id,
                 unnest($2::text::bigint[]) AS chain_id,
                 unnest($3::text::text[]) AS signer,
                 unnest($4::text::text[]) AS request_id,
                 unnest($5::text::text[]) AS kind,
                 unnest($6::text::uuid[]) AS origin,
                 unnest(string_to_array($7, E'\x1f')) AS payload,
                 unnest($8::text::float8[]) AS valid_for_s,
                 unnest(string_to_array($9, E'\x1f', '')) AS tags) a
), signers AS MATERIALIZED (
  SELECT a.chain_id, a.signer, u.used_by,
         (SELECT c.state FROM signer_nonce_cursor c WHERE c.chain_id = a.chain_id AND c.signer = a.signer)
         IS NOT DISTINCT FROM 'PROTECT' AS is_protected,
         (SELECT string_agg(w.seq::text, ',')
            FROM (SELECT q.seq FROM managed_tx q
                   WHERE q.chain_id = a.chain_id AND q.signer = a.signer AND q.is_live AND q.state = 'QUEUED'
                   ORDER BY q.seq DESC LIMIT $11) w) AS waiting
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
  INSERT INTO managed_tx
         (seq, tx_id, chain_id, signer, request_id, kind, origin, payload, payload_digest, valid_until, tags, journal_count)
         OVERRIDING SYSTEM VALUE
  SELECT a.seq, a.tx_id, a.chain_id, a.signer, a.request_id, a.kind, a.origin, a.payload::jsonb,
         sha256(convert_to(a.payload, 'UTF8')),
         clock_timestamp() + make_interval(secs => a.valid_for_s),
         CASE WHEN a.tags IS NULL THEN '{}' ELSE ARRAY(SELECT jsonb_array_elements_text(a.tags::jsonb)) END, 1
    FROM asked a
    JOIN takers t ON t.chain_id = a.chain_id AND t.signer = a.signer
   ORDER BY a.chain_id, a.signer, a.request_id COLLATE "C", a.seq
      ON CONFLICT (chain_id, signer, request_id) DO NOTHING
  RETURNING tx_id, chain_id, signer, seq
), journaled AS (
  INSERT INTO journal_sheet (chain_id, signers, moment, tx_ids, events, states, node)
  SELECT chain_id, array_agg(signer::text), left(tx_id::text, 11), array_agg(tx_id), '{Receive}', '{QUEUED}', $10
    FROM created
   GROUP BY chain_id, left(tx_id::text, 11), seq / 64 -- as many as fit into half a page
)
SELECT c.tx_id, c.seq, s.waiting FROM created c JOIN signers s ON s.chain_id = c.chain_id AND s.signer = c.signer

-- name: requests_known
-- What is stored under the given request ids. A statement of its own, so that it sees what was committed meanwhile.
SELECT a.position, t.tx_id, t.payload_digest
  FROM unnest($1::bigint[], $2::text[], $3::text[]) WITH ORDINALITY AS a (chain_id, signer, request_id, position)
  JOIN managed_tx t ON t.chain_id = a.chain_id AND t.signer = a.signer AND t.request_id = a.request_id

-- name: protect_reasons
-- Why signers take nothing new.
SELECT c.chain_id, c.signer, c.reason
  FROM signer_nonce_cursor c
  JOIN unnest($1::bigint[], $2::text[]) AS a (chain_id, signer) ON a.chain_id = c.chain_id AND a.signer = c.signer
 WHERE c.state = 'PROTECT'
 UNION ALL
SELECT u.chain_id, u.signer, 'it is nonce-only: the nonce service gives its nonces, and the core must not use them'
  FROM signer_use u
  JOIN unnest($1::bigint[], $2::text[]) AS a (chain_id, signer) ON a.chain_id = u.chain_id AND a.signer = u.signer
 WHERE u.used_by = 'nonce'

-- name: ask_command
-- Stores what a person asks of a lane.
-- unfenced: a wish; the lane carries it out under its lease
INSERT INTO lane_command (chain_id, signer, tx_id, command, detail, asked_by, reason)
VALUES ($1, $2, $3, $4, $5::jsonb, $6, $7)
RETURNING id

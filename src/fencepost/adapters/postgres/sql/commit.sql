-- name: commit_lanes
-- Apply the writes of lanes: all or nothing per lane, and only under the lane's current token.
-- fenced: by FOR KEY SHARE on the lease row with the token, taken before all writes and held until the commit
-- Lanes whose term is over are missing from the result. The sources `lane`, `change`, `filler`, `new_attempt`, `new_batch` and
-- `done_command` are the rows of the commit (`sources.py`); each row but a lane names its lane.
WITH {{sources}}, {{parts}}
SELECT g.lane, g.applies AS applied
  FROM judged g
 WHERE {{conditions}}

-- condition: cursors
-- Raise serialization_failure if an UPDATE skipped a cursor: another statement changed it after `judged` had read it.
all_written((SELECT count(*) FROM cursors),
            (SELECT count(*) FROM judged j WHERE j.applies AND j.next_nonce IS NOT NULL AND j.place IS NOT NULL))

-- condition: txs
-- Raise serialization_failure if an UPDATE skipped a transaction: another statement changed it after `checked` had read it.
all_written((SELECT count(*) FROM txs),
            (SELECT count(*) FROM checked c JOIN judged j ON j.lane = c.lane AND j.applies))

-- part: held
-- The lanes whose term is current. The lock makes a take-over wait until the commit.
held AS MATERIALIZED (
  SELECT l.*
    FROM signer_lease s
    JOIN lane l ON s.chain_id = l.chain_id AND s.signer = l.signer AND s.fencing_token = l.token
     FOR KEY SHARE OF s
)

-- part: checked
-- Each row is looked up once. The change is valid if the row has the version that the lane loaded and the transition is legal.
checked AS MATERIALIZED (
  SELECT c.*, t.ctid AS place,
         t.version = c.version AND may_follow(t.state, c.state) AS stands
    FROM change c
    LEFT JOIN managed_tx t ON t.tx_id = c.tx_id
)

-- part: judged
-- A lane applies if all its changes are valid and its cursor is as it was loaded.
judged AS MATERIALIZED (
  SELECT h.*, k.ctid AS place,
         h.lane NOT IN (SELECT c.lane FROM checked c WHERE c.stands IS NOT TRUE)
         AND (h.next_nonce IS NULL
              OR (k.next_nonce IS NOT DISTINCT FROM h.next_expected AND k.state IS NOT DISTINCT FROM h.state_expected))
         AS applies
    FROM held h
    LEFT JOIN signer_nonce_cursor k -- the key is NULL, which skips the lookup, if the cursor does not change
           ON k.chain_id = h.chain_id AND k.signer = CASE WHEN h.next_nonce IS NOT NULL THEN h.signer END
)

-- part: new_cursors
-- Insert the first cursor of a signer.
new_cursors AS (
  INSERT INTO signer_nonce_cursor (chain_id, signer, fencing_token, {{cursor_names}})
  SELECT g.chain_id, g.signer, g.token,
         {{cursor_values}}
    FROM judged g
   WHERE g.applies AND g.next_nonce IS NOT NULL AND g.place IS NULL
)

-- part: cursors
-- Update by the ctid that was just read.
cursors AS (
  UPDATE signer_nonce_cursor k
     SET fencing_token = g.token,
         updated_at = clock_timestamp(),
         {{set_cursor_columns}}
    FROM judged g
   WHERE g.applies AND k.ctid = g.place AND k.next_nonce = g.next_expected AND k.state = g.state_expected
  RETURNING 1
)

-- part: txs
-- Update by the ctid that was just read. `IS NOT DISTINCT FROM` keeps the planner on the TID scan: no index serves it.
txs AS (
  UPDATE managed_tx t
     SET version = t.version + 1,
         fencing_token = g.token,
         updated_at = clock_timestamp(),
         is_live = c.state NOT IN ('CONFIRMED', 'FAILED', 'CANCELLED'),
         finished_at = CASE WHEN c.state IN ('CONFIRMED', 'FAILED', 'CANCELLED') THEN clock_timestamp() END,
         {{set_tx_columns}}
    FROM checked c
    JOIN judged g ON g.lane = c.lane AND g.applies
   WHERE t.ctid = c.place AND t.tx_id IS NOT DISTINCT FROM c.tx_id AND t.version = c.version
  RETURNING 1
)

-- part: fillers
-- Fillers have no request: they start with a nonce and signed bytes. The key of tx_attempt rejects a second one for a nonce.
fillers AS (
  INSERT INTO managed_tx (tx_id, chain_id, signer, kind, version, fencing_token, {{filler_names}})
  SELECT f.tx_id, g.chain_id, g.signer, 'filler', f.version + 1, g.token,
         {{filler_values}}
    FROM filler f
    JOIN judged g ON g.lane = f.lane AND g.applies
   ORDER BY f.lane, f.nonce
)

-- part: new_attempts
-- Insert the signed bytes.
new_attempts AS (
  INSERT INTO tx_attempt (chain_id, signer, fencing_token, {{attempt_names}})
  SELECT g.chain_id, g.signer, g.token,
         {{attempt_values}}
    FROM new_attempt a
    JOIN judged g ON g.lane = a.lane AND g.applies
)

-- part: journaled
-- Insert the journal entries, in order.
journaled AS (
  INSERT INTO journal_batch (chain_id, signer, fencing_token, {{batch_names}})
  SELECT g.chain_id, g.signer, g.token,
         {{batch_values}}
    FROM new_batch e
    JOIN judged g ON g.lane = e.lane AND g.applies
   ORDER BY e.position
)

-- part: commands
-- Finish operator commands.
commands AS (
  UPDATE lane_command d
     SET done_at = clock_timestamp(),
         {{set_command_columns}}
    FROM done_command o
    JOIN judged g ON g.lane = o.lane AND g.applies
   WHERE d.id = o.id AND d.chain_id = g.chain_id AND d.signer = g.signer
)

-- name: chain_genesis
-- Return the recorded first block of a chain; record the given one if the chain is new to this database.
-- unfenced: no signer's record; the first writer decides, and a row never changes
INSERT INTO chain_identity AS known (chain_id, genesis_hash)
VALUES ($1, $2)
    ON CONFLICT (chain_id) DO UPDATE
   SET genesis_hash = known.genesis_hash
RETURNING genesis_hash

-- name: stable_chain_read
-- Read the newest stable blocks of a chain.
SELECT c.newest, c.hashes FROM stable_chain c WHERE c.chain_id = $1

-- name: stable_chain_move
-- Replace the newest stable blocks of a chain if the last one is still the expected one, and write the events in the same commit.
-- unfenced: no signer's record; the expected block decides which of several nodes writes
WITH moved AS (
  INSERT INTO stable_chain AS c (chain_id, newest, hashes)
  VALUES ($1, $2, $3)
      ON CONFLICT (chain_id) DO UPDATE
     SET newest = excluded.newest, hashes = excluded.hashes
   WHERE c.newest = $4 AND c.hashes[cardinality(c.hashes)] = $5
  RETURNING c.chain_id
), noted AS (
  INSERT INTO journal_batch (chain_id, tx_ids, events, states, details, node)
  SELECT m.chain_id, '{NULL}', $6::text[], array_fill(NULL::text, ARRAY[cardinality($6::text[])]), $7::text::json, $8
    FROM moved m
)
SELECT chain_id FROM moved

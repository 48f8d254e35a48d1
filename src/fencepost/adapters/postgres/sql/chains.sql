-- name: chain_genesis
-- Return the recorded first block of a chain; record the given one if the chain is new to this database.
-- unfenced: no signer's record; the first writer decides, and a row never changes
INSERT INTO chain_identity AS known (chain_id, genesis_hash)
VALUES ($1, $2)
    ON CONFLICT (chain_id) DO UPDATE
   SET genesis_hash = known.genesis_hash
RETURNING genesis_hash

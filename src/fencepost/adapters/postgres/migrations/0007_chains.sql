-- The chains that this database was used with. A chain is identified by its id and its first block: a chain with the same id and
-- another first block is a different chain, and the rows stored here do not apply to it.

CREATE TABLE chain_identity (
  chain_id       chain_number PRIMARY KEY,
  genesis_hash   hash         NOT NULL,
  first_used_at  timestamptz  NOT NULL DEFAULT clock_timestamp()
);

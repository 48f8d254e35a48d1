-- The stable blocks that events were written for, if a chain's stable_depth is set: one row per chain.
CREATE TABLE stable_chain (
  chain_id bigint  PRIMARY KEY,
  newest   bigint  NOT NULL CHECK (newest >= 0), -- the number of the last block
  hashes   text[]  NOT NULL CHECK (cardinality(hashes) BETWEEN 1 AND 256) -- of the newest blocks in order; the last one is that of `newest`
);

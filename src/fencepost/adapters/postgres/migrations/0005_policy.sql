-- What signers may do, beyond what keys may: looked at before a request is stored, and so before a nonce is spent.

CREATE TABLE signer_policy (
  chain_id       bigint      NOT NULL CHECK (chain_id > 0),
  signer         text        NOT NULL CHECK (signer ~ '^0x[0-9a-f]{40}$'),
  receivers      text[],     -- NULL: any
  selectors      text[],     -- NULL: any; '0x' is a plain transfer
  value_wei_max  numeric     CHECK (value_wei_max >= 0),
  daily_wei_max  numeric     CHECK (daily_wei_max >= 0),
  updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (chain_id, signer)
);

-- What a signer's requests have taken of its day, by UTC; only of signers that have a daily limit.
CREATE TABLE signer_spend (
  chain_id   bigint  NOT NULL,
  signer     text    NOT NULL,
  day        date    NOT NULL,
  spent_wei  numeric NOT NULL CHECK (spent_wei >= 0),
  PRIMARY KEY (chain_id, signer, day)
) WITH (fillfactor = 50);

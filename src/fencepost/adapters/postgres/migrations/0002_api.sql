-- The front door: tags to find requests by, keys of callers, what people did, and orders to page through.

CREATE DOMAIN tag_list AS text[] CHECK (cardinality(VALUE) <= 20);

ALTER TABLE managed_tx ADD COLUMN tags tag_list NOT NULL DEFAULT '{}';

CREATE INDEX managed_tx_tags ON managed_tx USING gin (tags) WHERE tags <> '{}';

-- What ended, in the one order in which nothing appears late.
CREATE INDEX journal_sheet_ended ON journal_sheet (xid, id) WHERE events && '{Finish,Refuse,Cancel,Lose}'::text[];

-- A key is shown once, when it is made; here stands the SHA-256 of its 256 random bits.
CREATE TABLE api_key (
  id          text        PRIMARY KEY CHECK (id ~ '^[0-9a-f]{16}$'),
  name        text        NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
  secret_hash bytea       NOT NULL CHECK (length(secret_hash) = 32),
  scopes      text[]      NOT NULL CHECK (scopes <@ ARRAY['tx:read', 'tx:write', 'operator', 'admin']),
  signers     text[],     -- NULL: all of them
  rate_per_s  float8      CHECK (rate_per_s > 0), -- NULL: without limit
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  revoked_at  timestamptz
);

-- Append-only: who did what, written in the statement that does it.
CREATE TABLE audit (
  id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at          timestamptz NOT NULL DEFAULT clock_timestamp(),
  actor       text        NOT NULL CHECK (length(actor) <= 300),
  key_id      text,       -- NULL: a caller on the loopback address, before there were keys, or the command line
  action      text        NOT NULL CHECK (length(action) <= 60),
  chain_id    bigint,
  signer      text,
  tx_id       uuid,
  command_id  bigint,
  reason      text        CHECK (length(reason) <= 2000),
  detail      jsonb       NOT NULL DEFAULT '{}',
  node        text        NOT NULL
);

CREATE INDEX audit_signer ON audit (chain_id, signer, id);

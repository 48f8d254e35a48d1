-- The API: tags, API keys, the audit log, and indexes for paging.

CREATE DOMAIN tag_list AS text[] CHECK (cardinality(VALUE) <= 20);

ALTER TABLE managed_tx ADD COLUMN tags tag_list NOT NULL DEFAULT '{}';
ALTER TABLE managed_tx ADD COLUMN key_id text; -- the API key that submitted the request; NULL: no key

CREATE INDEX managed_tx_tags ON managed_tx USING gin (tags) WHERE tags <> '{}';

-- Ended transactions, in the order in which no row appears late.
CREATE INDEX journal_batch_ended ON journal_batch (epoch, xid, id) WHERE events && '{Finish,Refuse,Cancel,Lose}'::text[];

-- A key is displayed once, when it is created; this table stores the SHA-256 of its 256 random bits.
-- Rows are never deleted: as long as a row exists, even of a revoked key, nodes reject callers without a key.
CREATE TABLE api_key (
  id          text        PRIMARY KEY CHECK (id ~ '^[0-9a-f]{16}$'),
  name        text        NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
  secret_hash bytea       NOT NULL CHECK (length(secret_hash) = 32),
  scopes      text[]      NOT NULL CHECK (scopes <@ ARRAY['tx:read', 'tx:write', 'rpc:expensive', 'operator', 'admin']),
  signers     text[],     -- NULL: all signers
  rate_per_s  float8      CHECK (rate_per_s > 0), -- NULL: no limit
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  revoked_at  timestamptz
);

-- Append-only: the actor of each action, written by the statement that performs the action.
CREATE TABLE audit (
  id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at          timestamptz NOT NULL DEFAULT clock_timestamp(),
  actor       text        NOT NULL CHECK (length(actor) <= 300),
  key_id      text,       -- NULL: a loopback caller before the first key was created, or the command line
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

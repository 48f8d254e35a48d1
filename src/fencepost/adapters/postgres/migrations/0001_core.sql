-- The core: who may act for a signer, what was asked, what was signed, what happened.
--
-- Every key carries the chain. Addresses and hashes are lower-case hex text, so that a person can read them in psql.
-- Rows of signer_lease are never deleted: a deleted row would start its tokens again.

CREATE TABLE signer_lease (
  chain_id       bigint      NOT NULL CHECK (chain_id > 0),
  signer         text        NOT NULL CHECK (signer ~ '^0x[0-9a-f]{40}$'),
  owner_node     text        NOT NULL,
  incarnation    uuid        NOT NULL,
  fencing_token  bigint      NOT NULL CHECK (fencing_token >= 0),
  acquired_at    timestamptz NOT NULL,
  expires_at     timestamptz NOT NULL,
  PRIMARY KEY (chain_id, signer),
  -- Makes a change of token a change of key, so that FOR KEY SHARE of a fenced write holds up a take-over.
  UNIQUE (chain_id, signer, fencing_token)
) WITH (fillfactor = 50);

CREATE INDEX signer_lease_owner ON signer_lease (incarnation);

-- One row a term. `sealed_snapshot` is what was visible when the term began: whatever an older token wrote must lie
-- inside it, which is how a late write is found out.
CREATE TABLE lease_term (
  chain_id        bigint      NOT NULL,
  signer          text        NOT NULL,
  fencing_token   bigint      NOT NULL,
  owner_node      text        NOT NULL,
  incarnation     uuid        NOT NULL,
  acquired_at     timestamptz NOT NULL,
  sealed_snapshot pg_snapshot NOT NULL,
  PRIMARY KEY (chain_id, signer, fencing_token)
);

CREATE TABLE signer_nonce_cursor (
  chain_id       bigint      NOT NULL,
  signer         text        NOT NULL,
  next_nonce     bigint      NOT NULL CHECK (next_nonce >= 0),
  start_nonce    bigint      NOT NULL CHECK (start_nonce >= 0),
  state          text        NOT NULL DEFAULT 'ACTIVE' CHECK (state IN ('ACTIVE', 'PAUSED', 'PROTECT')),
  reason         text        CHECK (length(reason) <= 2000),
  fencing_token  bigint      NOT NULL,
  updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (chain_id, signer),
  CHECK (next_nonce >= start_nonce),
  CHECK (state <> 'PROTECT' OR reason IS NOT NULL)
) WITH (fillfactor = 50);

CREATE TABLE managed_tx (
  tx_id            uuid        PRIMARY KEY,
  seq              bigint      GENERATED ALWAYS AS IDENTITY,
  chain_id         bigint      NOT NULL CHECK (chain_id > 0),
  signer           text        NOT NULL CHECK (signer ~ '^0x[0-9a-f]{40}$'),
  request_id       text        CHECK (length(request_id) BETWEEN 1 AND 200),
  kind             text        NOT NULL CHECK (kind IN ('intent', 'handler', 'filler')),
  origin           uuid,       -- the incarnation that holds the handler of a 'handler' row
  payload          jsonb       NOT NULL,
  payload_digest   bytea       NOT NULL CHECK (length(payload_digest) = 32),
  valid_until      timestamptz,

  version          bigint      NOT NULL DEFAULT 1,
  state            text        NOT NULL DEFAULT 'QUEUED'
    CHECK (state IN ('QUEUED', 'ALLOCATED', 'SUBMITTED', 'TRACKING', 'SUSPENDED', 'CONFIRMED', 'FAILED', 'CANCELLED')),
  -- Changes once in a lifetime, so that the steps in between touch no index.
  is_live          boolean     NOT NULL DEFAULT true CHECK (is_live = (finished_at IS NULL)),
  sub_state        text        CHECK (sub_state IN ('STALE', 'STUCK', 'UNFUNDED', 'PROTECT', 'REFUSED')),
  nonce            bigint      CHECK (nonce >= 0),
  ending           text        CHECK (ending IN ('FAILED', 'CANCELLED')), -- what it becomes when a filler takes its nonce
  error            text        CHECK (length(error) <= 2000),

  submit_count     integer     NOT NULL DEFAULT 0 CHECK (submit_count >= 0),
  last_submit_at   timestamptz,
  next_resubmit_at timestamptz,
  journal_count    integer     NOT NULL DEFAULT 0,

  tx_hash          text        CHECK (tx_hash ~ '^0x[0-9a-f]{64}$'), -- of the attempt that mined, else the latest
  block_number     bigint,
  block_hash       text        CHECK (block_hash ~ '^0x[0-9a-f]{64}$'),
  receipt          jsonb,
  confirmations    jsonb,

  fencing_token    bigint,
  created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  finished_at      timestamptz,

  UNIQUE (chain_id, signer, request_id),
  UNIQUE (chain_id, signer, nonce),
  CHECK (state <> 'QUEUED' OR nonce IS NULL),
  CHECK (state NOT IN ('ALLOCATED', 'SUBMITTED', 'TRACKING', 'CONFIRMED') OR nonce IS NOT NULL),
  CHECK (state NOT IN ('TRACKING', 'CONFIRMED') OR block_hash IS NOT NULL),
  CHECK ((block_hash IS NULL) = (block_number IS NULL)),
  CHECK ((state IN ('CONFIRMED', 'FAILED', 'CANCELLED')) = (finished_at IS NOT NULL))
) WITH (fillfactor = 70);

-- What a lane loads: the live rows of a signer, those with a nonce first by nonce, the queue by arrival.
CREATE INDEX managed_tx_live ON managed_tx (chain_id, signer, seq) WHERE is_live;

CREATE TABLE tx_attempt (
  tx_id          uuid        NOT NULL,
  attempt        integer     NOT NULL CHECK (attempt >= 1),
  chain_id       bigint      NOT NULL,
  signer         text        NOT NULL,
  nonce          bigint      NOT NULL CHECK (nonce >= 0),
  purpose        text        NOT NULL CHECK (purpose IN ('intent', 'filler')),
  tx_type        smallint    NOT NULL CHECK (tx_type BETWEEN 0 AND 2),
  gas            bigint      NOT NULL CHECK (gas > 0),
  fee_cap_wei    numeric     NOT NULL CHECK (fee_cap_wei >= 0),
  tip_wei        numeric     NOT NULL CHECK (tip_wei >= 0 AND tip_wei <= fee_cap_wei),
  raw            bytea       NOT NULL,
  tx_hash        text        NOT NULL CHECK (tx_hash ~ '^0x[0-9a-f]{64}$'),
  sent_count     integer     NOT NULL DEFAULT 0,
  last_result    text,
  last_message   text        CHECK (length(last_message) <= 2000),
  fencing_token  bigint      NOT NULL,
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tx_id, attempt),
  UNIQUE (chain_id, tx_hash)
) WITH (fillfactor = 80);

-- Which state may follow which: `domain/states.py` is the source, a test compares, every fenced write obeys.
CREATE TABLE state_transition (
  old_state text NOT NULL,
  new_state text NOT NULL,
  PRIMARY KEY (old_state, new_state)
);

INSERT INTO state_transition (old_state, new_state) VALUES
  ('QUEUED', 'QUEUED'), ('QUEUED', 'ALLOCATED'), ('QUEUED', 'SUSPENDED'), ('QUEUED', 'FAILED'), ('QUEUED', 'CANCELLED'),
  ('ALLOCATED', 'ALLOCATED'), ('ALLOCATED', 'SUBMITTED'), ('ALLOCATED', 'TRACKING'), ('ALLOCATED', 'SUSPENDED'), ('ALLOCATED', 'CONFIRMED'), ('ALLOCATED', 'FAILED'), ('ALLOCATED', 'CANCELLED'),
  ('SUBMITTED', 'SUBMITTED'), ('SUBMITTED', 'TRACKING'), ('SUBMITTED', 'SUSPENDED'), ('SUBMITTED', 'CONFIRMED'), ('SUBMITTED', 'FAILED'), ('SUBMITTED', 'CANCELLED'),
  ('TRACKING', 'SUBMITTED'), ('TRACKING', 'TRACKING'), ('TRACKING', 'SUSPENDED'), ('TRACKING', 'CONFIRMED'), ('TRACKING', 'FAILED'), ('TRACKING', 'CANCELLED'),
  ('SUSPENDED', 'QUEUED'), ('SUSPENDED', 'ALLOCATED'), ('SUSPENDED', 'SUBMITTED'), ('SUSPENDED', 'TRACKING'), ('SUSPENDED', 'SUSPENDED'), ('SUSPENDED', 'CANCELLED'),
  ('CONFIRMED', 'SUBMITTED'), ('CONFIRMED', 'TRACKING'),
  ('FAILED', 'SUBMITTED'), ('FAILED', 'TRACKING'),
  ('CANCELLED', 'SUBMITTED'), ('CANCELLED', 'TRACKING');

-- Append-only. (xid, id) below pg_snapshot_xmin(pg_current_snapshot()) is an order in which nothing appears late.
CREATE TABLE journal (
  id             bigint      GENERATED ALWAYS AS IDENTITY,
  xid            xid8        NOT NULL DEFAULT pg_current_xact_id(),
  at             timestamptz NOT NULL DEFAULT clock_timestamp(),
  chain_id       bigint      NOT NULL,
  signer         text        NOT NULL,
  tx_id          uuid,
  event          text        NOT NULL CHECK (length(event) <= 60),
  state          text,
  detail         jsonb,
  node           text,
  fencing_token  bigint,
  PRIMARY KEY (xid, id)
);

CREATE INDEX journal_tx ON journal (tx_id, id) WHERE tx_id IS NOT NULL;

-- What people ask of a lane. Any node writes a row; the lane that holds the lease carries it out, fenced.
CREATE TABLE lane_command (
  id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  chain_id       bigint      NOT NULL,
  signer         text        NOT NULL,
  tx_id          uuid,
  command        text        NOT NULL
    CHECK (command IN ('cancel', 'suspend', 'resume', 'resubmit', 'bump', 'protect', 'unprotect', 'pause', 'unpause')),
  detail         jsonb       NOT NULL DEFAULT '{}',
  asked_by       text        NOT NULL,
  reason         text        CHECK (length(reason) <= 2000),
  asked_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  done_at        timestamptz,
  outcome        text        CHECK (length(outcome) <= 2000)
);

CREATE INDEX lane_command_open ON lane_command (chain_id, signer, id) WHERE done_at IS NULL;

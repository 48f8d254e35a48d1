-- The core: who may act for a signer, what was asked, what was signed, what happened.
--
-- Every key carries the chain. Addresses and hashes are lower-case hex text, so that a person can read them in psql.
-- Rows of signer_lease are never deleted: a deleted row would start its tokens again.

CREATE TABLE signer_lease (
  chain_id       bigint      NOT NULL CHECK (chain_id > 0),
  signer         text        NOT NULL CHECK (length(signer) = 42),
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
  chain_id         bigint      NOT NULL,
  signer           text        NOT NULL,
  request_id       text,
  kind             text        NOT NULL, -- 'intent', 'handler' or 'filler'
  origin           uuid,       -- the incarnation that holds the handler of a 'handler' row
  payload          jsonb       NOT NULL,
  payload_digest   bytea       NOT NULL,
  valid_until      timestamptz,

  version          bigint      NOT NULL DEFAULT 1,
  state            text        NOT NULL DEFAULT 'QUEUED',
  -- Changes once in a lifetime, so that the steps in between touch no index.
  is_live          boolean     NOT NULL DEFAULT true,
  sub_state        text,
  nonce            bigint,
  ending           text, -- what it becomes when a filler takes its nonce
  error            text,

  submit_count     integer     NOT NULL DEFAULT 0,
  last_submit_at   timestamptz,
  next_resubmit_at timestamptz,
  journal_count    integer     NOT NULL DEFAULT 0,

  tx_hash          text,       -- of the attempt that mined, else the latest
  block_number     bigint,
  block_hash       text,
  receipt          jsonb,
  confirmations    jsonb,

  fencing_token    bigint,
  created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  finished_at      timestamptz,

  UNIQUE (chain_id, signer, request_id),
  -- A check is read anew by every statement that writes: few large ones cost less than many small ones.
  CONSTRAINT managed_tx_asked CHECK (
    chain_id > 0 AND length(signer) = 42 AND length(request_id) BETWEEN 1 AND 200
    AND kind IN ('intent', 'handler', 'filler') AND length(payload_digest) = 32),
  CONSTRAINT managed_tx_state CHECK (
    CASE state
      WHEN 'QUEUED' THEN is_live AND nonce IS NULL
      WHEN 'SUSPENDED' THEN is_live
      WHEN 'ALLOCATED' THEN is_live AND nonce IS NOT NULL
      WHEN 'SUBMITTED' THEN is_live AND nonce IS NOT NULL
      WHEN 'TRACKING' THEN is_live AND nonce IS NOT NULL AND block_hash IS NOT NULL
      WHEN 'CONFIRMED' THEN NOT is_live AND nonce IS NOT NULL AND block_hash IS NOT NULL
      WHEN 'FAILED' THEN NOT is_live
      WHEN 'CANCELLED' THEN NOT is_live
      ELSE false
    END
    AND is_live = (finished_at IS NULL) AND (block_hash IS NULL) = (block_number IS NULL)),
  CONSTRAINT managed_tx_values CHECK (
    nonce >= 0 AND submit_count >= 0 AND length(tx_hash) = 66 AND length(block_hash) = 66 AND length(error) <= 2000
    AND sub_state IN ('STALE', 'STUCK', 'UNFUNDED', 'PROTECT', 'REFUSED') AND ending IN ('FAILED', 'CANCELLED'))
) WITH (fillfactor = 70);

-- What a lane loads: the live rows of a signer, those with a nonce first by nonce, the queue by arrival.
CREATE INDEX managed_tx_live ON managed_tx (chain_id, signer, seq) WHERE is_live;

-- A signer's nonce belongs to one transaction.
CREATE UNIQUE INDEX managed_tx_nonce ON managed_tx (chain_id, signer, nonce) WHERE nonce IS NOT NULL;

-- What ended from a block on, after a fork. Rows come in about the order of their blocks: ranges suffice, and cost nothing.
CREATE INDEX managed_tx_block ON managed_tx USING brin (block_number) WITH (pages_per_range = 32, autosummarize = on);

CREATE TABLE tx_attempt (
  tx_id          uuid        NOT NULL,
  attempt        integer     NOT NULL,
  chain_id       bigint      NOT NULL,
  signer         text        NOT NULL,
  nonce          bigint      NOT NULL,
  purpose        text        NOT NULL, -- 'intent' or 'filler'
  tx_type        smallint    NOT NULL,
  gas            bigint      NOT NULL,
  fee_cap_wei    numeric     NOT NULL,
  tip_wei        numeric     NOT NULL,
  raw            bytea       NOT NULL,
  tx_hash        text        NOT NULL,
  sent_count     integer     NOT NULL DEFAULT 0,
  last_result    text,
  last_message   text,
  fencing_token  bigint      NOT NULL,
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tx_id, attempt),
  UNIQUE (chain_id, tx_hash),
  CONSTRAINT tx_attempt_values CHECK (
    attempt >= 1 AND nonce >= 0 AND purpose IN ('intent', 'filler') AND tx_type BETWEEN 0 AND 2 AND gas > 0
    AND tip_wei BETWEEN 0 AND fee_cap_wei AND length(tx_hash) = 66 AND length(last_message) <= 2000)
) WITH (fillfactor = 50); -- each row is written again once, with what the node said: in its own page

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

-- Append-only, and no row is asked for by itself, so it has no key. (xid, id) below pg_snapshot_xmin(pg_current_snapshot()) is an order in which nothing appears late.
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
  fencing_token  bigint
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

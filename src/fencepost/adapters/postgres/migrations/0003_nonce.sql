-- The nonce service: which part uses a signer, the signer's cursor, and its nonces.
--
-- A signer is used by the core or by the nonce service, never by both: the first use decides, and the primary key
-- enforces it. Rows of signer_use are never changed and never deleted.

CREATE TABLE signer_use (
  chain_id bigint NOT NULL CHECK (chain_id > 0),
  signer   text   NOT NULL CHECK (signer ~ '^0x[0-9a-f]{40}$'),
  used_by  text   NOT NULL CHECK (used_by IN ('core', 'nonce')),
  PRIMARY KEY (chain_id, signer)
);

INSERT INTO signer_use (chain_id, signer, used_by)
SELECT chain_id, signer, 'core' FROM managed_tx
 UNION
SELECT chain_id, signer, 'core' FROM signer_nonce_cursor;

CREATE TABLE nonce_cursor (
  chain_id      bigint      NOT NULL,
  signer        text        NOT NULL,
  start_nonce   bigint      NOT NULL CHECK (start_nonce >= 0),
  next_nonce    bigint      NOT NULL,
  chain_floor   bigint      NOT NULL DEFAULT 0, -- the chain's nonce when it was last read: no nonce below is allocated again
  fencing_token bigint,
  updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (chain_id, signer),
  CHECK (next_nonce >= start_nonce)
) WITH (fillfactor = 50);

CREATE TABLE nonce_slot (
  chain_id      bigint      NOT NULL,
  signer        text        NOT NULL,
  nonce         bigint      NOT NULL CHECK (nonce >= 0),
  state         text        NOT NULL CHECK (state IN ('HELD', 'SUBMITTED', 'CONSUMED', 'RELEASED')),
  hold          uuid,       -- the token of the current or last hold; a mark with another token is rejected
  tx_hash       text        CHECK (tx_hash ~ '^0x[0-9a-f]{64}$'),
  held_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at    timestamptz NOT NULL,
  revision      bigint      NOT NULL DEFAULT 0, -- of a write-behind state: an older revision never replaces a newer one
  fencing_token bigint,
  PRIMARY KEY (chain_id, signer, nonce),
  CHECK (state <> 'SUBMITTED' OR tx_hash IS NOT NULL),
  CHECK (state <> 'RELEASED' OR tx_hash IS NULL)
) WITH (fillfactor = 70);

CREATE INDEX nonce_slot_released ON nonce_slot (chain_id, signer, nonce) WHERE state = 'RELEASED';
CREATE INDEX nonce_slot_held ON nonce_slot (chain_id, signer, expires_at) WHERE state = 'HELD';
CREATE INDEX nonce_slot_submitted ON nonce_slot (chain_id, signer, nonce) WHERE state = 'SUBMITTED';

-- A range of nonces that one process allocates from memory. `seen_at` is its last heartbeat. A process can't write to a retired
-- block, and nonces of it that were never stored may be allocated again.
CREATE TABLE nonce_block (
  block_id    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  chain_id    bigint      NOT NULL,
  signer      text        NOT NULL,
  first_nonce bigint      NOT NULL,
  past_nonce  bigint      NOT NULL,
  owner       uuid        NOT NULL,
  seen_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  retired_at  timestamptz,
  UNIQUE (chain_id, signer, first_nonce),
  CHECK (past_nonce > first_nonce)
) WITH (fillfactor = 50);

CREATE INDEX nonce_block_live ON nonce_block (chain_id, signer) WHERE retired_at IS NULL;

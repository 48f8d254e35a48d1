-- The core: leases, requests, attempts and the journal.
--
-- Every key contains the chain. Addresses and hashes are lower-case hex text, so that an operator can read them in psql.
-- Rows of signer_lease are never deleted: the tokens of a deleted row would restart.
--
-- PostgreSQL reads a table's CHECK constraints for every statement that writes to it, which costs a small commit more than its
-- rows do. Conditions on one column are therefore part of its domain: PostgreSQL reads a domain once per connection and checks
-- it only when the column is written. Conditions on several columns, in the tables of the hot path, are one function call.

CREATE DOMAIN chain_number AS bigint CHECK (VALUE > 0);
CREATE DOMAIN address AS text CHECK (length(VALUE) = 42);
CREATE DOMAIN hash AS text CHECK (length(VALUE) = 66);
CREATE DOMAIN digest AS bytea CHECK (length(VALUE) = 32);
CREATE DOMAIN natural_number AS bigint CHECK (VALUE >= 0);
CREATE DOMAIN wei AS numeric CHECK (VALUE >= 0);
CREATE DOMAIN tally AS integer CHECK (VALUE >= 0);
CREATE DOMAIN prose AS text CHECK (length(VALUE) <= 2000);
-- A deadline that every client library can read back: the API accepts ten years, this rejects years beyond 9999.
CREATE DOMAIN deadline AS timestamptz CHECK (VALUE >= '2000-01-01Z' AND VALUE < '9000-01-01Z');

CREATE TABLE signer_lease (
  chain_id       bigint      NOT NULL CHECK (chain_id > 0),
  signer         text        NOT NULL CHECK (length(signer) = 42),
  owner_node     text        NOT NULL,
  incarnation    uuid        NOT NULL,
  fencing_token  bigint      NOT NULL CHECK (fencing_token >= 0),
  acquired_at    timestamptz NOT NULL,
  expires_at     timestamptz NOT NULL,
  PRIMARY KEY (chain_id, signer),
  -- Makes a change of token a change of key, so that the FOR KEY SHARE lock of a fenced write blocks a take-over.
  UNIQUE (chain_id, signer, fencing_token)
) WITH (fillfactor = 50);

CREATE INDEX signer_lease_owner ON signer_lease (incarnation);

-- One row per term. `sealed_snapshot` is the snapshot in which the term began: every write with an older token must be visible
-- in it; a write that is not was late.
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

-- The histories of the database. A new one begins when the identity of the database differs from the one that was
-- recorded last: a replica was promoted, or this is a copy (a restored dump, a restored base backup, CREATE DATABASE …
-- TEMPLATE). Commits may then be missing, among them the cursor of a signer that looks new.
-- `history` is in the upper bits of every fencing token. `epoch` comes first in the order of the journal, because
-- another cluster has its own transaction ids. Epochs are milliseconds since 1970, so that two copies of one backup
-- differ. The key contains the whole identity: after a restore of the data alone, two rows can have the same number.
CREATE TABLE database_history (
  history       bigint      NOT NULL,
  epoch         bigint      NOT NULL,
  system_id     bigint      NOT NULL,
  timeline      bigint      NOT NULL,
  database_oid  bigint      NOT NULL,
  table_oid     bigint      NOT NULL,
  is_copy       boolean     NOT NULL, -- false: the first history, or a promoted replica of the previous one
  began_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (history, system_id, timeline, database_oid, table_oid)
);

-- The identity of this database: the cluster, its timeline, the database, and the table (a dump that is restored in place
-- creates new tables).
CREATE VIEW database_identity AS
SELECT c.system_identifier AS system_id,
       ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint AS timeline,
       d.oid::bigint AS database_oid,
       'database_history'::regclass::oid::bigint AS table_oid
  FROM pg_control_system() c
 CROSS JOIN pg_database d
 WHERE d.datname = current_database();

-- The first history: no commit can be missing in the history that created the tables.
INSERT INTO database_history (history, epoch, system_id, timeline, database_oid, table_oid, is_copy, began_at)
SELECT i.timeline << 8, (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
       i.system_id, i.timeline, i.database_oid, i.table_oid, false, '-infinity'
  FROM database_identity i;

CREATE DOMAIN cursor_state AS text CHECK (VALUE IN ('ACTIVE', 'PROTECT'));

CREATE TABLE signer_nonce_cursor (
  chain_id       chain_number   NOT NULL,
  signer         address        NOT NULL,
  next_nonce     natural_number NOT NULL,
  start_nonce    natural_number NOT NULL,
  is_doubted     boolean        NOT NULL DEFAULT false, -- signed bytes whose commit was lost may have been sent with the next nonces
  state          cursor_state   NOT NULL DEFAULT 'ACTIVE',
  reason         prose,
  pause          prose,         -- the reason an operator gave for the pause; NULL: not paused
  fencing_token  bigint         NOT NULL,
  updated_at     timestamptz    NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (chain_id, signer),
  CONSTRAINT signer_nonce_cursor_is_consistent CHECK (next_nonce >= start_nonce AND (state <> 'PROTECT' OR reason IS NOT NULL))
) WITH (fillfactor = 50);

CREATE DOMAIN tx_kind AS text CHECK (VALUE IN ('intent', 'handler', 'filler'));
CREATE DOMAIN request_name AS text CHECK (length(VALUE) BETWEEN 1 AND 200);
CREATE DOMAIN tx_sub_state AS text
  CHECK (VALUE IN ('STALE', 'STUCK', 'BELOW_MARKET', 'PENDING_IN_POOL', 'UNFUNDED', 'PROTECT', 'REFUSED', 'SUPERSEDED'));
CREATE DOMAIN tx_ending AS text CHECK (VALUE IN ('FAILED', 'CANCELLED'));

-- Check which columns a transaction has in each state, and that it is live until it has ended.
CREATE FUNCTION managed_tx_is_consistent(
  state text, is_live boolean, nonce bigint, block_number bigint, block_hash text, finished_at timestamptz
) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  RETURN is_live = (finished_at IS NULL) AND (block_hash IS NULL) = (block_number IS NULL) AND
    CASE state
      WHEN 'QUEUED' THEN is_live AND nonce IS NULL
      WHEN 'ALLOCATED' THEN is_live AND nonce IS NOT NULL
      WHEN 'SUBMITTED' THEN is_live AND nonce IS NOT NULL
      WHEN 'TRACKING' THEN is_live AND nonce IS NOT NULL AND block_hash IS NOT NULL
      WHEN 'CONFIRMED' THEN NOT is_live AND nonce IS NOT NULL AND block_hash IS NOT NULL
      WHEN 'FAILED' THEN NOT is_live
      WHEN 'CANCELLED' THEN NOT is_live
      WHEN 'SUSPENDED' THEN is_live
      ELSE false
    END;
END $$;

CREATE TABLE managed_tx (
  tx_id            uuid           PRIMARY KEY,
  seq              bigint         GENERATED ALWAYS AS IDENTITY,
  chain_id         chain_number   NOT NULL,
  signer           address        NOT NULL,
  request_id       request_name,
  kind             tx_kind        NOT NULL,
  origin           uuid,          -- the incarnation that holds the handler of a 'handler' row
  payload          jsonb          NOT NULL,
  payload_digest   digest         NOT NULL,
  valid_until      deadline,

  version          bigint         NOT NULL DEFAULT 1,
  state            text           NOT NULL DEFAULT 'QUEUED',
  -- Changes once in a transaction's life, so that the transitions in between update no index.
  is_live          boolean        NOT NULL DEFAULT true,
  sub_state        tx_sub_state,
  nonce            natural_number,
  ending           tx_ending,     -- the state that it gets once a filler has consumed its nonce
  error            prose,

  submit_count     tally          NOT NULL DEFAULT 0,
  last_submit_at   timestamptz,
  next_resubmit_at timestamptz,
  journal_count    integer        NOT NULL DEFAULT 0,

  tx_hash          hash,          -- of the mined attempt, else of the latest
  block_number     bigint,
  block_hash       hash,
  receipt          json,
  confirmations    json,
  sends            json,          -- per attempt: how often it was sent, and the last result

  fencing_token    bigint,
  created_at       timestamptz    NOT NULL DEFAULT clock_timestamp(),
  updated_at       timestamptz    NOT NULL DEFAULT clock_timestamp(),
  finished_at      timestamptz,

  UNIQUE (chain_id, signer, request_id),
  CONSTRAINT managed_tx_is_consistent CHECK (managed_tx_is_consistent(state, is_live, nonce, block_number, block_hash, finished_at))
) WITH (fillfactor = 25); -- room for a HOT update when a row gets its nonce: no index may contain a column that changes then

-- For loading a lane: the live rows of a signer, those with a nonce by nonce, the queue by arrival.
CREATE INDEX managed_tx_live ON managed_tx (chain_id, signer, seq) WHERE is_live;

-- The few transactions that ended with an error, among them those that were lost before they had an attempt.
CREATE INDEX managed_tx_ended_with_error ON managed_tx (chain_id, signer, seq) WHERE NOT is_live AND error IS NOT NULL;

-- Ended transactions by block: read from the newest block down when a node starts, and from a block up after a fork.
CREATE INDEX managed_tx_ended_block ON managed_tx (chain_id, block_number) WHERE NOT is_live AND block_number IS NOT NULL;

CREATE DOMAIN attempt_number AS integer CHECK (VALUE >= 1);
CREATE DOMAIN attempt_purpose AS text CHECK (VALUE IN ('intent', 'filler'));
CREATE DOMAIN envelope_type AS smallint CHECK (VALUE BETWEEN 0 AND 2);
CREATE DOMAIN gas_amount AS bigint CHECK (VALUE > 0);

-- The signed bytes. A nonce belongs to one transaction, whose attempts are numbered from 1, and only bytes that are stored here
-- are ever sent. The key rejects the attempt of a second transaction for a nonce, whatever else went wrong. Rows never change.
CREATE TABLE tx_attempt (
  tx_id          uuid            NOT NULL,
  attempt        attempt_number  NOT NULL,
  chain_id       chain_number    NOT NULL,
  signer         address         NOT NULL,
  nonce          natural_number  NOT NULL,
  purpose        attempt_purpose NOT NULL,
  tx_type        envelope_type   NOT NULL,
  gas            gas_amount      NOT NULL,
  fee_cap_wei    wei             NOT NULL,
  tip_wei        wei             NOT NULL,
  raw            bytea           NOT NULL,
  tx_hash        hash            NOT NULL,
  fencing_token  bigint          NOT NULL,
  created_at     timestamptz     NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (chain_id, signer, nonce, attempt),
  UNIQUE (tx_hash, chain_id), -- the hash first: a plan made while the table was empty must not search by the chain alone
  CONSTRAINT tx_attempt_is_consistent CHECK (tip_wei <= fee_cap_wei)
);

-- The legal transitions. `domain/states.py` is the source, a test compares the two, and every fenced write checks them. PostgreSQL
-- inlines a function of one expression; a table would need a lookup per row.
CREATE FUNCTION may_follow(old_state text, new_state text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT old_state || '>' || new_state = ANY ('{
    QUEUED>QUEUED,QUEUED>ALLOCATED,QUEUED>SUSPENDED,QUEUED>FAILED,QUEUED>CANCELLED,
    ALLOCATED>ALLOCATED,ALLOCATED>SUBMITTED,ALLOCATED>TRACKING,ALLOCATED>SUSPENDED,ALLOCATED>CONFIRMED,ALLOCATED>FAILED,ALLOCATED>CANCELLED,
    SUBMITTED>SUBMITTED,SUBMITTED>TRACKING,SUBMITTED>SUSPENDED,SUBMITTED>CONFIRMED,SUBMITTED>FAILED,SUBMITTED>CANCELLED,
    TRACKING>SUBMITTED,TRACKING>TRACKING,TRACKING>SUSPENDED,TRACKING>CONFIRMED,TRACKING>FAILED,TRACKING>CANCELLED,
    SUSPENDED>QUEUED,SUSPENDED>ALLOCATED,SUSPENDED>SUBMITTED,SUSPENDED>TRACKING,SUSPENDED>SUSPENDED,SUSPENDED>CANCELLED,
    CONFIRMED>SUBMITTED,CONFIRMED>TRACKING,
    FAILED>SUBMITTED,FAILED>TRACKING,
    CANCELLED>SUBMITTED,CANCELLED>TRACKING
  }'::text[])
$$;

CREATE FUNCTION newest_epoch() RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT max(epoch) FROM database_history
$$;

-- The journal as it is stored: append-only, and without a key, because no single row is ever looked up. A batch contains
-- transactions that had the same events in the same order in one commit. They belong to one signer, and the batch carries the
-- token of that signer's term; only the batches of newly stored requests have no token and may contain several signers. The
-- view below shows one row per event. (epoch, xid, id) below the newest epoch and pg_snapshot_xmin(pg_current_snapshot()) is an
-- order in which no row appears late: within an epoch, transaction ids come from one cluster, and every batch of an older epoch
-- was committed before the newest epoch began.
CREATE TABLE journal_batch (
  id             bigint      GENERATED ALWAYS AS IDENTITY (INCREMENT BY 256), -- of its first event; the other events have the ids after it
  -- A node sets `fencepost.epoch` on each connection after it has compared the database's identity.
  epoch          bigint      NOT NULL DEFAULT coalesce(nullif(current_setting('fencepost.epoch', true), '')::bigint, newest_epoch()),
  xid            xid8        NOT NULL DEFAULT pg_current_xact_id(),
  at             timestamptz NOT NULL DEFAULT clock_timestamp(),
  chain_id       bigint      NOT NULL,
  signer         text,
  signers        text[], -- per transaction, if requests of several signers were stored together
  -- The first eleven characters of the ids of its transactions, which all requests of 256 ms share: a transaction's events are
  -- found in the batches with its prefix. NULL: the event concerns the signer itself.
  id_prefix      text        COLLATE "C",
  tx_ids         uuid[]      NOT NULL,
  events         text[]      NOT NULL,
  states         text[]      NOT NULL, -- the transaction's state after each event
  details        json,                 -- per event of each transaction, in one array; NULL: no event has details
  node           text,
  fencing_token  bigint
) WITH (toast_tuple_target = 8160); -- keeps a batch in its page, neither compressed nor moved to TOAST

CREATE INDEX journal_batch_id_prefix ON journal_batch (id_prefix, id) WHERE id_prefix IS NOT NULL;

-- The journal, one row per event. `together` lists all transactions of the batch: a query for one transaction also filters by it.
CREATE VIEW journal AS
SELECT s.id + line.position - 1 AS id, s.epoch, s.xid, s.at, s.chain_id,
       coalesce(s.signer, s.signers[(line.position - 1) / cardinality(s.events) + 1]) AS signer,
       s.tx_ids[(line.position - 1) / cardinality(s.events) + 1] AS tx_id,
       s.events[(line.position - 1) % cardinality(s.events) + 1] AS event,
       s.states[(line.position - 1) % cardinality(s.events) + 1] AS state,
       CASE WHEN json_typeof(line.detail) <> 'null' THEN line.detail END AS detail,
       s.node, s.fencing_token, s.id_prefix, s.tx_ids AS together
  FROM journal_batch s
 CROSS JOIN LATERAL json_array_elements(
         coalesce(s.details, array_to_json(array_fill(NULL::text, ARRAY[cardinality(s.tx_ids) * cardinality(s.events)])))
       ) WITH ORDINALITY AS line (detail, position);

-- Operator commands. Any node inserts a row; the lane of the lease holder runs the command with a fenced write.
CREATE TABLE lane_command (
  id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  chain_id       bigint      NOT NULL,
  signer         text        NOT NULL,
  tx_id          uuid,
  command        text        NOT NULL
    CHECK (command IN ('cancel', 'suspend', 'resume', 'resubmit', 'bump', 'protect', 'unprotect', 'pause', 'unpause',
                       'withdraw')),
  detail         jsonb       NOT NULL DEFAULT '{}',
  author         text        NOT NULL,
  reason         text        CHECK (length(reason) <= 2000),
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  done_at        timestamptz,
  outcome        text        CHECK (length(outcome) <= 2000),
  applied        boolean     -- whether it changed anything; NULL until it is done
);

CREATE INDEX lane_command_open ON lane_command (chain_id, signer, id) WHERE done_at IS NULL;

-- The fenced write checks rows before it updates them. If another statement of the same term has changed one in between, the
-- UPDATE skips it; this function then undoes everything.
CREATE FUNCTION all_written(written bigint, wanted bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF written IS DISTINCT FROM wanted THEN
    RAISE EXCEPTION 'a row was changed by another statement' USING ERRCODE = 'serialization_failure';
  END IF;
  RETURN true;
END $$;

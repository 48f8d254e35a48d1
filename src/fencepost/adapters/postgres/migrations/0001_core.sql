-- The core: who may act for a signer, what was asked, what was signed, what happened.
--
-- Every key carries the chain. Addresses and hashes are lower-case hex text, so that a person can read them in psql.
-- Rows of signer_lease are never deleted: a deleted row would start its tokens again.
--
-- The server reads a table's checks anew for every statement that writes to it, which costs a small commit more than its
-- rows do. What one column must be is therefore said by its type: that is read once a connection, and asked only when
-- the column is written. What columns must be together, in the tables of the hot path, is one call of a function.

CREATE DOMAIN chain_number AS bigint CHECK (VALUE > 0);
CREATE DOMAIN address AS text CHECK (length(VALUE) = 42);
CREATE DOMAIN hash AS text CHECK (length(VALUE) = 66);
CREATE DOMAIN digest AS bytea CHECK (length(VALUE) = 32);
CREATE DOMAIN natural_number AS bigint CHECK (VALUE >= 0);
CREATE DOMAIN wei AS numeric CHECK (VALUE >= 0);
CREATE DOMAIN tally AS integer CHECK (VALUE >= 0);
CREATE DOMAIN prose AS text CHECK (length(VALUE) <= 2000);

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

-- The histories of the database that nodes have met, by timeline: a promoted server begins a new one, and may have lost
-- the cursor of a signer that looks new. The history that the tables were made in has lost nothing of them.
CREATE TABLE database_history (
  timeline  bigint      PRIMARY KEY,
  began_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

INSERT INTO database_history (timeline, began_at)
SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint, '-infinity';

CREATE DOMAIN cursor_state AS text CHECK (VALUE IN ('ACTIVE', 'PAUSED', 'PROTECT'));

CREATE TABLE signer_nonce_cursor (
  chain_id       chain_number   NOT NULL,
  signer         address        NOT NULL,
  next_nonce     natural_number NOT NULL,
  start_nonce    natural_number NOT NULL,
  is_doubted     boolean        NOT NULL DEFAULT false, -- bytes whose commit was lost may be out at the next nonces
  state          cursor_state   NOT NULL DEFAULT 'ACTIVE',
  reason         prose,
  fencing_token  bigint         NOT NULL,
  updated_at     timestamptz    NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (chain_id, signer),
  CONSTRAINT signer_nonce_cursor_stands CHECK (next_nonce >= start_nonce AND (state <> 'PROTECT' OR reason IS NOT NULL))
) WITH (fillfactor = 50);

CREATE DOMAIN tx_kind AS text CHECK (VALUE IN ('intent', 'handler', 'filler'));
CREATE DOMAIN request_name AS text CHECK (length(VALUE) BETWEEN 1 AND 200);
CREATE DOMAIN tx_sub_state AS text CHECK (VALUE IN ('STALE', 'STUCK', 'UNFUNDED', 'PROTECT', 'REFUSED'));
CREATE DOMAIN tx_ending AS text CHECK (VALUE IN ('FAILED', 'CANCELLED'));

-- What a transaction must have in each state, and that it is live until it has ended.
CREATE FUNCTION managed_tx_stands(
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
  valid_until      timestamptz,

  version          bigint         NOT NULL DEFAULT 1,
  state            text           NOT NULL DEFAULT 'QUEUED',
  -- Changes once in a lifetime, so that the steps in between touch no index.
  is_live          boolean        NOT NULL DEFAULT true,
  sub_state        tx_sub_state,
  nonce            natural_number,
  ending           tx_ending,     -- what it becomes when a filler takes its nonce
  error            prose,

  submit_count     tally          NOT NULL DEFAULT 0,
  last_submit_at   timestamptz,
  next_resubmit_at timestamptz,
  journal_count    integer        NOT NULL DEFAULT 0,

  tx_hash          hash,          -- of the attempt that mined, else the latest
  block_number     bigint,
  block_hash       hash,
  receipt          json,
  confirmations    json,
  sends            json,          -- of each attempt: how often it was sent, and what was said of it last

  fencing_token    bigint,
  created_at       timestamptz    NOT NULL DEFAULT clock_timestamp(),
  updated_at       timestamptz    NOT NULL DEFAULT clock_timestamp(),
  finished_at      timestamptz,

  UNIQUE (chain_id, signer, request_id),
  CONSTRAINT managed_tx_stands CHECK (managed_tx_stands(state, is_live, nonce, block_number, block_hash, finished_at))
) WITH (fillfactor = 25); -- a row gets its nonce in its own page, so that no index is touched: none may name what changes then

-- What a lane loads: the live rows of a signer, those with a nonce first by nonce, the queue by arrival.
CREATE INDEX managed_tx_live ON managed_tx (chain_id, signer, seq) WHERE is_live;

-- What ended with an error, which few do: among them is what was lost before it had bytes.
CREATE INDEX managed_tx_ended_badly ON managed_tx (chain_id, signer, seq) WHERE NOT is_live AND error IS NOT NULL;

-- What ended from a block on, after a fork. Rows come in about the order of their blocks: ranges suffice, and cost nothing.
CREATE INDEX managed_tx_block ON managed_tx USING brin (block_number) WITH (pages_per_range = 32, autosummarize = on);

CREATE DOMAIN attempt_number AS integer CHECK (VALUE >= 1);
CREATE DOMAIN attempt_purpose AS text CHECK (VALUE IN ('intent', 'filler'));
CREATE DOMAIN envelope_type AS smallint CHECK (VALUE BETWEEN 0 AND 2);
CREATE DOMAIN gas_amount AS bigint CHECK (VALUE > 0);

-- A signer's nonce belongs to one transaction: the bytes of each begin with attempt 1, and nothing is sent that is not
-- stored here. The key lets no second transaction have bytes for a nonce, whatever else went wrong. Rows never change.
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
  UNIQUE (tx_hash, chain_id), -- the hash first: a plan made while the table was empty must not look up by the chain alone
  CONSTRAINT tx_attempt_stands CHECK (tip_wei <= fee_cap_wei)
);

-- Which state may follow which: `domain/states.py` is the source, a test compares, every fenced write obeys. A function of
-- one expression, because that becomes part of the statement: a table would be looked up in for each row.
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

-- Append-only, and no row is asked for by itself, so it has no key. A sheet is what one commit says of transactions to
-- which the same happened: for each of them, the same events in the same order. They are of one signer, whose token it
-- carries; only requests that were just stored, under nobody's token, are told of for several signers at once. What is
-- written together is one row; the view below shows one row an event. (xid, id) below
-- pg_snapshot_xmin(pg_current_snapshot()) is an order in which nothing appears late.
CREATE TABLE journal_sheet (
  id             bigint      GENERATED ALWAYS AS IDENTITY (INCREMENT BY 256), -- of its first line; the others follow it
  xid            xid8        NOT NULL DEFAULT pg_current_xact_id(),
  at             timestamptz NOT NULL DEFAULT clock_timestamp(),
  chain_id       bigint      NOT NULL,
  signer         text,
  signers        text[], -- of each transaction, where requests of several signers were stored together
  -- The first eleven characters of the ids of its transactions, which 256 ms of requests share: a transaction is looked
  -- for on the sheets of its moment. NULL: it is of the signer itself.
  moment         text        COLLATE "C",
  tx_ids         uuid[]      NOT NULL,
  events         text[]      NOT NULL,
  states         text[]      NOT NULL, -- of the transaction after each event
  details        json,                 -- of each event of each transaction, in one array; NULL: there is nothing more to say
  node           text,
  fencing_token  bigint
) WITH (toast_tuple_target = 8160); -- a sheet stays as it is, in one piece

CREATE INDEX journal_sheet_moment ON journal_sheet (moment, id) WHERE moment IS NOT NULL;

-- The journal, one row an event. `together` are all transactions of its sheet: who looks for one names it there, too.
CREATE VIEW journal AS
SELECT s.id + line.position - 1 AS id, s.xid, s.at, s.chain_id,
       coalesce(s.signer, s.signers[(line.position - 1) / cardinality(s.events) + 1]) AS signer,
       s.tx_ids[(line.position - 1) / cardinality(s.events) + 1] AS tx_id,
       s.events[(line.position - 1) % cardinality(s.events) + 1] AS event,
       s.states[(line.position - 1) % cardinality(s.events) + 1] AS state,
       CASE WHEN json_typeof(line.detail) <> 'null' THEN line.detail END AS detail,
       s.node, s.fencing_token, s.moment, s.tx_ids AS together
  FROM journal_sheet s
 CROSS JOIN LATERAL json_array_elements(
         coalesce(s.details, array_to_json(array_fill(NULL::text, ARRAY[cardinality(s.tx_ids) * cardinality(s.events)])))
       ) WITH ORDINALITY AS line (detail, position);

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

-- What a lane decided, as `commit_lane` takes it: of itself, of its transactions, their new bytes, and what the journal gets.
CREATE TYPE lane_write AS (
  chain_id       bigint,
  signer         text,
  token          bigint,
  next_expected  bigint,
  state_expected text,
  next_nonce     bigint, -- NULL: the cursor stays as it is
  start_nonce    bigint,
  is_doubted     boolean,
  cursor_state   text,
  reason         text
);
CREATE TYPE tx_change AS (
  tx_id              uuid,
  version            bigint,
  state              text,
  sub_state          text,
  nonce              bigint,
  ending             text,
  error              text,
  submit_count       integer,
  journal_count      integer,
  submitted_ago_s    float8,
  resubmit_in_s      float8,
  tx_hash            text,
  block_number       bigint,
  block_hash         text,
  sets_receipt       boolean,
  receipt            json,
  sets_confirmations boolean,
  confirmations      json,
  sets_sends         boolean,
  sends              json
);
CREATE TYPE new_attempt AS (
  tx_id       uuid,
  attempt     integer,
  nonce       bigint,
  purpose     text,
  tx_type     smallint,
  gas         bigint,
  fee_cap_wei numeric,
  tip_wei     numeric,
  raw         bytea,
  tx_hash     text
);
CREATE TYPE new_sheet AS (moment text, tx_ids uuid[], events text[], states text[], details json);

-- The fenced write of a single lane, row by row: what `commit_lanes` does for many. One statement for all of it costs the
-- server half as much again when the rows are few, because it makes ready for any number of them first.
-- NULL: the term is over, nothing was written. False: the cursor has moved, nothing was written. A transaction that has
-- moved fails the statement, which undoes all of it.
CREATE FUNCTION commit_lane(
  lane lane_write, changes tx_change[], attempts new_attempt[], sheets new_sheet[], node text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  c tx_change;
  a new_attempt;
  e new_sheet;
BEGIN
  PERFORM FROM signer_lease s
    WHERE s.chain_id = lane.chain_id AND s.signer = lane.signer AND s.fencing_token = lane.token
      FOR KEY SHARE;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  IF lane.next_nonce IS NOT NULL THEN
    IF lane.next_expected IS NULL THEN
      INSERT INTO signer_nonce_cursor
             (chain_id, signer, next_nonce, start_nonce, is_doubted, state, reason, fencing_token)
      VALUES (lane.chain_id, lane.signer, lane.next_nonce, lane.start_nonce, lane.is_doubted, lane.cursor_state,
              lane.reason, lane.token)
          ON CONFLICT DO NOTHING;
    ELSE
      UPDATE signer_nonce_cursor k
         SET next_nonce = lane.next_nonce, start_nonce = lane.start_nonce, is_doubted = lane.is_doubted,
             state = lane.cursor_state, reason = lane.reason, fencing_token = lane.token, updated_at = clock_timestamp()
       WHERE k.chain_id = lane.chain_id AND k.signer = lane.signer
         AND k.next_nonce = lane.next_expected AND k.state = lane.state_expected;
    END IF;
    IF NOT FOUND THEN
      RETURN false;
    END IF;
  END IF;
  FOREACH c IN ARRAY changes LOOP
    UPDATE managed_tx t
       SET version = t.version + 1,
           state = c.state,
           sub_state = c.sub_state,
           nonce = c.nonce,
           ending = c.ending,
           error = c.error,
           submit_count = c.submit_count,
           journal_count = c.journal_count,
           last_submit_at = clock_timestamp() - make_interval(secs => c.submitted_ago_s),
           next_resubmit_at = clock_timestamp() + make_interval(secs => c.resubmit_in_s),
           tx_hash = c.tx_hash,
           block_number = c.block_number,
           block_hash = c.block_hash,
           receipt = CASE WHEN c.sets_receipt THEN c.receipt ELSE t.receipt END,
           confirmations = CASE WHEN c.sets_confirmations THEN c.confirmations ELSE t.confirmations END,
           sends = CASE WHEN c.sets_sends THEN c.sends ELSE t.sends END,
           fencing_token = lane.token,
           updated_at = clock_timestamp(),
           is_live = c.state NOT IN ('CONFIRMED', 'FAILED', 'CANCELLED'),
           finished_at = CASE WHEN c.state IN ('CONFIRMED', 'FAILED', 'CANCELLED') THEN clock_timestamp() END
     WHERE t.tx_id = c.tx_id AND t.version = c.version AND may_follow(t.state, c.state);
    IF NOT FOUND THEN
      RAISE EXCEPTION 'transaction % is not as remembered', c.tx_id USING ERRCODE = 'serialization_failure';
    END IF;
  END LOOP;
  FOREACH a IN ARRAY attempts LOOP
    INSERT INTO tx_attempt
           (tx_id, attempt, chain_id, signer, nonce, purpose, tx_type, gas, fee_cap_wei, tip_wei, raw, tx_hash,
            fencing_token)
    VALUES (a.tx_id, a.attempt, lane.chain_id, lane.signer, a.nonce, a.purpose, a.tx_type, a.gas, a.fee_cap_wei,
            a.tip_wei, a.raw, a.tx_hash, lane.token);
  END LOOP;
  FOREACH e IN ARRAY sheets LOOP
    INSERT INTO journal_sheet (chain_id, signer, moment, tx_ids, events, states, details, node, fencing_token)
    VALUES (lane.chain_id, lane.signer, e.moment, e.tx_ids, e.events, e.states, e.details, node, lane.token);
  END LOOP;
  RETURN true;
END $$;

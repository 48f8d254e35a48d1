-- Subscriptions: a filter over the event log, a checkpoint that only the lease holder moves, and the deliveries that are due again.

-- An event id is text whose byte order is the order of the log.
CREATE TABLE subscription (
  id              uuid        PRIMARY KEY,
  key_id          text        REFERENCES api_key, -- NULL: a loopback caller before the first key was created
  type            text        NOT NULL CHECK (type IN ('webhook', 'websocket')),
  url             text        CHECK (length(url) <= 2048),
  types           text[],     -- NULL: all types
  signers         text[],     -- NULL: all signers of the key
  tags            text[]      NOT NULL DEFAULT '{}',
  chain_id        bigint,     -- NULL: all chains
  ordered         text        NOT NULL CHECK (ordered IN ('none', 'signer')),
  on_error        text        NOT NULL CHECK (on_error IN ('block', 'skip')),
  -- Signatures need the secret itself, so it is stored as it is. The second one is valid until the next rotation or its time.
  secret          bytea       CHECK (length(secret) BETWEEN 24 AND 64),
  old_secret      bytea       CHECK (length(old_secret) BETWEEN 24 AND 64),
  old_secret_until timestamptz,
  state           text        NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'disabled')),
  reason          text        CHECK (length(reason) <= 500), -- of the state
  version         bigint      NOT NULL DEFAULT 1, -- rises with every change that the lease holder must notice
  created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK (type <> 'webhook' OR (url IS NOT NULL AND secret IS NOT NULL))
);

CREATE INDEX subscription_key ON subscription (key_id, created_at);

-- One row per subscription, which exists as long as the subscription. Ids are random and never used again, so a token can't return.
CREATE TABLE subscription_lease (
  subscription_id uuid        PRIMARY KEY REFERENCES subscription ON DELETE CASCADE,
  is_webhook      boolean     NOT NULL,
  is_active       boolean     NOT NULL DEFAULT true,
  node            text        NOT NULL DEFAULT '',
  holder          uuid        NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
  fencing_token   bigint      NOT NULL DEFAULT 0,
  expires_at      timestamptz NOT NULL DEFAULT '-infinity',
  checkpoint      text        COLLATE "C" NOT NULL CHECK (checkpoint ~ '^evt_[0-9a-f]{45}$'), -- every event up to here is delivered or in webhook_delivery
  failing_since   timestamptz, -- the first failure after the last success
  UNIQUE (subscription_id, fencing_token) -- a new token is a key update, which conflicts with FOR KEY SHARE
) WITH (fillfactor = 50);

-- Finds the free leases of active webhooks; the lease of a WebSocket is acquired by its connection.
CREATE INDEX subscription_lease_due ON subscription_lease (expires_at) WHERE is_webhook AND is_active;

-- Events that an endpoint has not accepted yet, and those that were given up. `due_at` is NULL if the event was given up.
CREATE TABLE webhook_delivery (
  subscription_id uuid        NOT NULL REFERENCES subscription ON DELETE CASCADE,
  event_id        text        COLLATE "C" NOT NULL,
  chain_id        bigint      NOT NULL,
  signer          text,
  attempts        integer     NOT NULL DEFAULT 0,
  due_at          timestamptz,
  failed_at       timestamptz, -- of the last failed attempt
  PRIMARY KEY (subscription_id, event_id)
);

CREATE INDEX webhook_delivery_due ON webhook_delivery (subscription_id, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX webhook_delivery_given_up ON webhook_delivery (subscription_id, failed_at) WHERE due_at IS NULL;

-- What endpoints answered. The newest attempts of each subscription are kept.
CREATE TABLE webhook_attempt (
  id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  subscription_id uuid        NOT NULL REFERENCES subscription ON DELETE CASCADE,
  event_id        text        NOT NULL,
  attempt         integer     NOT NULL,
  at              timestamptz NOT NULL,
  duration_s      float8      NOT NULL,
  status          integer,    -- NULL: no answer came
  error           text,       -- NULL: the endpoint accepted the event
  answer          text        NOT NULL DEFAULT '' -- the first bytes of the body
);

CREATE INDEX webhook_attempt_newest ON webhook_attempt (subscription_id, id);

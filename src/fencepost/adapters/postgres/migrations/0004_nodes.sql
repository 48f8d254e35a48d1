-- The running nodes. The table only decides which node tries first to acquire a lease; the leases decide which node may write.
--
-- A name belongs to one process at a time. The process that has it renews `expires_at`. Another process with the same name may
-- take an expired row; the previous owner then finds another incarnation in it.

CREATE TABLE fencepost_node (
  node_id       text        PRIMARY KEY CHECK (length(node_id) BETWEEN 1 AND 120),
  incarnation   uuid        NOT NULL,
  url           text        CHECK (length(url) <= 2000), -- of its API; NULL: it has none
  mode          text        NOT NULL CHECK (mode IN ('basic', 'worker_queue')),
  serves        text        NOT NULL CHECK (length(serves) <= 100), -- a digest of its chains and signers: nodes with the same digest share work
  silent_chains bigint[]    NOT NULL DEFAULT '{}', -- chains whose endpoints do not respond to this node: other nodes acquire their signers
  version       text        NOT NULL CHECK (length(version) <= 60),
  started_at    timestamptz NOT NULL,
  heartbeat_at  timestamptz NOT NULL,
  expires_at    timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Which processes are at work. Nothing rests on it but who is asked first: who may write is decided by the leases.
--
-- A name belongs to one process at a time. The process that has it renews `expires_at`; a row whose time is over may be
-- taken by another process of the same name, and a process whose row was taken finds another incarnation there.

CREATE TABLE fencepost_node (
  node_id       text        PRIMARY KEY CHECK (length(node_id) BETWEEN 1 AND 120),
  incarnation   uuid        NOT NULL,
  url           text        CHECK (length(url) <= 2000), -- where its API is, if it has one
  mode          text        NOT NULL CHECK (mode IN ('basic', 'worker_queue')),
  serves        text        NOT NULL CHECK (length(serves) <= 100), -- a digest of its chains and signers: equals share work
  version       text        NOT NULL CHECK (length(version) <= 60),
  started_at    timestamptz NOT NULL,
  heartbeat_at  timestamptz NOT NULL,
  expires_at    timestamptz NOT NULL
) WITH (fillfactor = 50);

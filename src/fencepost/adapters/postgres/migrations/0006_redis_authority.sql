-- Whether Redis allocates for a signer of scheme redis_full. All processes share the setting: a single process that can't reach
-- Redis would otherwise allocate nonces that the others also get from Redis. Redis is off between two times. Switching it off
-- begins a new epoch, and a Redis that was loaded in another epoch allocates nothing.

ALTER TABLE nonce_cursor
  ADD COLUMN redis_epoch     bigint NOT NULL DEFAULT 0,
  ADD COLUMN redis_off_from  timestamptz,
  ADD COLUMN redis_off_until timestamptz;

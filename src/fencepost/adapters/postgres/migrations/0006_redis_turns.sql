-- Whether Redis speaks for a signer of scheme redis_full: one answer for all processes, because a process that alone
-- can't reach Redis would otherwise give what others give from it. Redis is off from one time until another; each time
-- that it is turned off begins a new epoch, and a Redis that was loaded in another one gives nothing.

ALTER TABLE nonce_cursor
  ADD COLUMN redis_epoch     bigint NOT NULL DEFAULT 0,
  ADD COLUMN redis_off_from  timestamptz,
  ADD COLUMN redis_off_until timestamptz;

-- name: subscription_lock
-- Serialize the creation of subscriptions of one owner until the transaction ends, so that their number can be bounded.
SELECT pg_advisory_xact_lock(hashtextextended('fencepost subscription ' || coalesce($1::text, ''), 0))

-- name: subscription_count
-- Count the subscriptions of an owner, up to a bound.
SELECT count(*) FROM (SELECT 1 FROM subscription c WHERE c.key_id IS NOT DISTINCT FROM $1::text LIMIT $2) counted

-- name: subscription_insert
-- Store a subscription with its lease row and an audit row. The transaction must run `subscription_lock` first.
-- unfenced: a new row, whose lease no process holds
WITH made AS (
  INSERT INTO subscription (id, key_id, type, url, types, signers, tags, chain_id, ordered, on_error, secret)
  VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
  RETURNING id, key_id, type
), leased AS (
  INSERT INTO subscription_lease (subscription_id, is_webhook, checkpoint)
  SELECT id, type = 'webhook', $12 FROM made
)
INSERT INTO audit (actor, key_id, action, detail, node)
SELECT coalesce(key_id, 'local'), key_id, 'subscription.create', jsonb_build_object('subscription', id), $13 FROM made

-- name: subscription_get
-- Load a subscription, with the number of deliveries that wait for a retry, up to a bound.
SELECT c.id, c.key_id, c.type, c.url, c.types, c.signers, c.tags, c.chain_id, c.ordered, c.on_error, c.secret,
       CASE WHEN c.old_secret_until > clock_timestamp() THEN c.old_secret END AS old_secret,
       c.state, c.reason, c.version, c.created_at, l.checkpoint, l.failing_since,
       (SELECT count(*) FROM (SELECT 1 FROM webhook_delivery d
                               WHERE d.subscription_id = c.id AND d.due_at IS NOT NULL LIMIT 10000) due) AS pending
  FROM subscription c
  JOIN subscription_lease l ON l.subscription_id = c.id
 WHERE c.id = $1

-- name: subscription_ids
-- List the subscriptions of an owner, or of all owners, oldest first.
SELECT c.id
  FROM subscription c
 WHERE $2::boolean OR c.key_id IS NOT DISTINCT FROM $1::text
 ORDER BY c.created_at, c.id
 LIMIT $3

-- name: subscription_pause
-- Pause a subscription. The lease holder notices the new version when it renews.
-- unfenced: changes the state that the owner chose, not the checkpoint
WITH changed AS (
  UPDATE subscription
     SET state = 'paused', reason = NULL, version = version + 1
   WHERE id = $1
  RETURNING id
), stopped AS (
  UPDATE subscription_lease SET is_active = false WHERE subscription_id IN (SELECT id FROM changed)
)
SELECT EXISTS (SELECT 1 FROM changed)

-- name: subscription_resume
-- Resume a subscription. A new place also takes a new token, so that the former lease holder can't overwrite it.
-- unfenced: the owner decides where to continue; the new token fences every earlier holder
WITH changed AS (
  UPDATE subscription
     SET state = 'active', reason = NULL, version = version + 1
   WHERE id = $1
  RETURNING id
), started AS (
  UPDATE subscription_lease
     SET is_active = true,
         failing_since = NULL,
         checkpoint = coalesce($2, checkpoint),
         fencing_token = CASE WHEN $2::text IS NULL THEN fencing_token ELSE fencing_token + 1 END,
         expires_at = CASE WHEN $2::text IS NULL THEN expires_at ELSE '-infinity' END
   WHERE subscription_id IN (SELECT id FROM changed)
)
SELECT EXISTS (SELECT 1 FROM changed)

-- name: subscription_delete
-- Remove a subscription; its lease, deliveries and attempts go with it.
-- unfenced: the owner decides; the holder of its lease finds no row any more
WITH gone AS (
  DELETE FROM subscription WHERE id = $1 RETURNING id, key_id
), audited AS (
  INSERT INTO audit (actor, key_id, action, detail, node)
  SELECT coalesce(key_id, 'local'), key_id, 'subscription.delete', jsonb_build_object('subscription', id), $2 FROM gone
)
SELECT EXISTS (SELECT 1 FROM gone)

-- name: subscription_rotate
-- Sign with a new secret, and with the current one too until the overlap is over.
-- unfenced: secrets belong to the owner; both are valid while nodes learn of the new one
WITH changed AS (
  UPDATE subscription
     SET old_secret = secret, secret = $2, version = version + 1,
         old_secret_until = clock_timestamp() + make_interval(secs => $3)
   WHERE id = $1 AND secret IS NOT NULL
  RETURNING id, key_id
), audited AS (
  INSERT INTO audit (actor, key_id, action, detail, node)
  SELECT coalesce(key_id, 'local'), key_id, 'subscription.rotate_secret', jsonb_build_object('subscription', id), $4 FROM changed
)
SELECT EXISTS (SELECT 1 FROM changed)

-- name: subscription_acquire
-- Acquire leases of active webhooks that have expired, each with a larger token.
-- unfenced: this statement creates the tokens
WITH free AS (
  SELECT s.subscription_id
    FROM subscription_lease s
   WHERE s.is_webhook AND s.is_active AND s.expires_at < clock_timestamp()
   ORDER BY s.expires_at
   LIMIT $4
     FOR UPDATE OF s SKIP LOCKED
)
UPDATE subscription_lease s
   SET holder = $1,
       node = $2,
       -- A promoted replica or a copy may have lost the last tokens: its new history number makes every new token larger.
       fencing_token = greatest(s.fencing_token, (SELECT max(h.history) FROM database_history h) << 32) + 1,
       expires_at = clock_timestamp() + make_interval(secs => $3)
  FROM free
  JOIN subscription c ON c.id = free.subscription_id
 WHERE s.subscription_id = free.subscription_id
RETURNING s.subscription_id, s.fencing_token, s.checkpoint, c.version

-- name: subscription_acquire_one
-- Acquire the lease of one active subscription if it has expired or belongs to this process, with a larger token.
-- unfenced: this statement creates the tokens
WITH free AS (
  SELECT s.subscription_id
    FROM subscription_lease s
   WHERE s.subscription_id = $4 AND s.is_active AND (s.expires_at < clock_timestamp() OR s.holder = $1)
     FOR UPDATE OF s SKIP LOCKED
)
UPDATE subscription_lease s
   SET holder = $1,
       node = $2,
       -- A promoted replica or a copy may have lost the last tokens: its new history number makes every new token larger.
       fencing_token = greatest(s.fencing_token, (SELECT max(h.history) FROM database_history h) << 32) + 1,
       expires_at = clock_timestamp() + make_interval(secs => $3)
  FROM free
  JOIN subscription c ON c.id = free.subscription_id
 WHERE s.subscription_id = free.subscription_id
RETURNING s.subscription_id, s.fencing_token, s.checkpoint, c.version

-- name: subscription_renew
-- Renew leases; a subscription that is missing from the result is lost, or not active any more.
-- fenced: by its token, which is never in SET
UPDATE subscription_lease s
   SET expires_at = clock_timestamp() + make_interval(secs => $3)
  FROM unnest($1::uuid[], $2::bigint[]) AS w (id, token)
  JOIN subscription c ON c.id = w.id
 WHERE s.subscription_id = w.id AND s.fencing_token = w.token AND s.is_active
RETURNING s.subscription_id, c.version

-- name: subscription_release
-- Release leases, so that another process can acquire them without waiting for their expiry.
-- fenced: by its token, which is never in SET
UPDATE subscription_lease s
   SET expires_at = '-infinity'
  FROM unnest($1::uuid[], $2::bigint[]) AS w (id, token)
 WHERE s.subscription_id = w.id AND s.fencing_token = w.token

-- name: subscription_advance
-- Move checkpoints forward; a subscription that is missing from the result has lost its lease.
-- fenced: by its token, which is never in SET
UPDATE subscription_lease s
   SET checkpoint = greatest(s.checkpoint, w.checkpoint)
  FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS w (id, token, checkpoint)
 WHERE s.subscription_id = w.id AND s.fencing_token = w.token
RETURNING s.subscription_id

-- name: subscription_settle
-- Record the outcome of deliveries: the checkpoint, accepted and failed deliveries, and the attempts. No row if the lease is lost.
-- fenced: every part depends on the lease row with the token
WITH held AS (
  UPDATE subscription_lease s
     SET checkpoint = greatest(s.checkpoint, w.checkpoint),
         failing_since = CASE WHEN w.succeeded THEN NULL
                              WHEN NOT w.succeeded THEN coalesce(s.failing_since, clock_timestamp())
                              ELSE s.failing_since END
    FROM (SELECT $1::uuid AS id, $2::bigint AS token, $3::text AS checkpoint, $4::boolean AS succeeded) w
   WHERE s.subscription_id = w.id AND s.fencing_token = w.token
  RETURNING s.subscription_id
), accepted AS (
  DELETE FROM webhook_delivery d
   WHERE d.subscription_id = (SELECT h.subscription_id FROM held h) AND d.event_id = ANY ($5::text[])
), stored AS (
  INSERT INTO webhook_delivery AS d (subscription_id, event_id, chain_id, signer, attempts, due_at, failed_at)
  SELECT h.subscription_id, r.event_id, r.chain_id, r.signer, r.attempts,
         clock_timestamp() + make_interval(secs => r.due_in_s),
         CASE WHEN r.attempts > 0 THEN clock_timestamp() END
    FROM held h
   CROSS JOIN unnest($6::text[], $7::bigint[], $8::text[], $9::integer[], $10::float8[])
           AS r (event_id, chain_id, signer, attempts, due_in_s)
      ON CONFLICT (subscription_id, event_id) DO UPDATE
     SET attempts = excluded.attempts, due_at = excluded.due_at, failed_at = excluded.failed_at
), attempted AS (
  INSERT INTO webhook_attempt (subscription_id, event_id, attempt, at, duration_s, status, error, answer)
  SELECT h.subscription_id, a.event_id, a.attempt, to_timestamp(a.at_s), a.duration_s, a.status, a.error, a.answer
    FROM held h
   CROSS JOIN unnest($11::text[], $12::integer[], $13::float8[], $14::float8[], $15::integer[], $16::text[], $17::text[])
           AS a (event_id, attempt, at_s, duration_s, status, error, answer)
)
SELECT subscription_id FROM held

-- name: subscription_disable
-- Disable a subscription whose endpoint does not accept events, and write the event. No row if the lease is lost.
-- fenced: every part depends on the lease row with the token
WITH held AS (
  UPDATE subscription_lease s
     SET is_active = false, expires_at = '-infinity'
    FROM (SELECT $1::uuid AS id, $2::bigint AS token) w
   WHERE s.subscription_id = w.id AND s.fencing_token = w.token AND s.is_active
  RETURNING s.subscription_id
), changed AS (
  UPDATE subscription c
     SET state = 'disabled', reason = $3, version = c.version + 1
    FROM held h
   WHERE c.id = h.subscription_id
), journaled AS (
  INSERT INTO journal_batch (chain_id, tx_ids, events, states, details, node)
  SELECT 0, '{NULL}', '{WebhookDisabled}', '{NULL}',
         json_build_array(json_build_object('subscription', h.subscription_id, 'reason', $3::text)), $4
    FROM held h
)
SELECT subscription_id FROM held

-- name: subscription_pending
-- List the deliveries of a subscription that wait for a retry, in the order of the log.
SELECT d.event_id, d.chain_id, d.signer, d.attempts, extract(epoch FROM d.due_at - clock_timestamp())::float8 AS due_in_s
  FROM webhook_delivery d
 WHERE d.subscription_id = $1 AND d.due_at IS NOT NULL AND (NOT $2::boolean OR d.due_at <= clock_timestamp())
 ORDER BY d.event_id
 LIMIT $3

-- name: subscription_redeliver
-- Store deliveries to be made now. The new version wakes the lease holder.
-- unfenced: adds deliveries; it neither moves the checkpoint nor removes anything
WITH changed AS (
  UPDATE subscription SET version = version + 1 WHERE id = $1 RETURNING id
), stored AS (
  INSERT INTO webhook_delivery AS d (subscription_id, event_id, chain_id, signer, attempts, due_at)
  SELECT c.id, r.event_id, r.chain_id, r.signer, 0, clock_timestamp()
    FROM changed c
   CROSS JOIN unnest($2::text[], $3::bigint[], $4::text[]) AS r (event_id, chain_id, signer)
      ON CONFLICT (subscription_id, event_id) DO UPDATE
     SET attempts = 0, due_at = excluded.due_at
  RETURNING 1
)
SELECT count(*) FROM stored

-- name: subscription_redeliver_failed
-- Make deliveries due that were given up since a time, oldest first. The new version wakes the lease holder.
-- unfenced: adds deliveries; it neither moves the checkpoint nor removes anything
WITH chosen AS (
  SELECT d.subscription_id, d.event_id
    FROM webhook_delivery d
   WHERE d.subscription_id = $1 AND d.due_at IS NULL AND d.failed_at >= $2
   ORDER BY d.failed_at
   LIMIT $3
), due AS (
  UPDATE webhook_delivery d
     SET attempts = 0, due_at = clock_timestamp()
    FROM chosen c
   WHERE d.subscription_id = c.subscription_id AND d.event_id = c.event_id AND d.due_at IS NULL
  RETURNING d.subscription_id
), changed AS (
  UPDATE subscription SET version = version + 1 WHERE id = $1 AND EXISTS (SELECT 1 FROM due)
)
SELECT count(*) FROM due

-- name: subscription_record_attempt
-- Record the attempt to deliver a test event; nothing if the subscription is gone.
-- unfenced: a record for the owner, on which nothing depends
INSERT INTO webhook_attempt (subscription_id, event_id, attempt, at, duration_s, status, error, answer)
SELECT c.id, $2, $3, $4, $5, $6, $7, $8 FROM subscription c WHERE c.id = $1

-- name: subscription_attempts
-- List the newest attempts of a subscription.
SELECT a.event_id, a.attempt, a.at, a.duration_s, a.status, a.error, a.answer
  FROM webhook_attempt a
 WHERE a.subscription_id = $1 AND (NOT $2::boolean OR a.error IS NOT NULL)
 ORDER BY a.id DESC
 LIMIT $3

-- name: subscription_forget_attempts
-- Delete all but the newest attempts of a subscription.
-- unfenced: a record for the owner, on which nothing depends
DELETE FROM webhook_attempt a
 WHERE a.subscription_id = $1
   AND a.id <= (SELECT n.id FROM webhook_attempt n WHERE n.subscription_id = $1 ORDER BY n.id DESC OFFSET $2 LIMIT 1)

-- name: subscription_prune
-- Delete deliveries that were given up long ago, a bounded number at a time.
-- unfenced: given up before the retention; they are never sent unless the owner asks
WITH old AS (
  SELECT d.subscription_id, d.event_id
    FROM webhook_delivery d
   WHERE d.due_at IS NULL AND d.failed_at < clock_timestamp() - make_interval(secs => $1)
   LIMIT $2
     FOR UPDATE SKIP LOCKED
), removed AS (
  DELETE FROM webhook_delivery d
   USING old o
   WHERE d.subscription_id = o.subscription_id AND d.event_id = o.event_id
  RETURNING 1
)
SELECT count(*) FROM removed

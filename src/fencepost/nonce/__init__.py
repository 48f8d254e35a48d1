"""The nonce service: nonces for those who send by themselves.

    allocate ──▶ HELD ──mark_submitted──▶ SUBMITTED ──mined to depth, or mark_used──▶ CONSUMED
                  │  ▲
   mark_recyclable│  │allocate: the smallest released nonce first, only then the cursor moves
     or time over ▼  │
                RELEASED

`port` says what every scheme promises. Five schemes keep it, one file each: `postgres`, `redis_issue`, `redis_full`,
`leased` (the default) and `segments`; `docs/nonce-schemes.md` tells which to choose. `records` is what they share: the
rows in PostgreSQL. What only those with Redis need: `redis_link`, `redis_lock` in front of `postgres`, and for
`redis_full` its scripts in `lua`, its `write_behind`, and `redis_turns`, which decides whether Redis speaks for a signer.
`closing` ends what is mined, `service` chooses a scheme a signer and keeps all of them going.

A signer belongs to the core or to this service, never to both; the database decides.
"""

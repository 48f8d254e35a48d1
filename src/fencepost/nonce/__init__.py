"""Allocate nonces to callers that sign and send their own transactions: the nonce service.

    allocate ──▶ HELD ──mark_submitted──▶ SUBMITTED ──mined to depth, or mark_used──▶ CONSUMED
                  │  ▲
   mark_recyclable│  │allocate: the smallest released nonce first, only then the cursor moves
       or expiry  ▼  │
                RELEASED

`port` defines what every scheme guarantees. Five schemes implement it, one file each: `postgres`, `redis_issue`,
`redis_full`, `leased` (the default) and `segments`; `docs/nonce-schemes.md` explains which to choose. All share `store`, the
rows in PostgreSQL. The schemes with Redis use `redis_client`; `redis_lock` is an optional lock in front of `postgres`;
`redis_full` has its scripts in `redis_scripts`, its `write_behind`, and `redis_authority`, which decides whether Redis
allocates for a signer. `confirmer` marks mined nonces as consumed. `service` selects the scheme of each signer and runs
the maintenance loops; `factory` builds it from the settings.

A signer belongs to the core or to this service, never to both; the database decides.
"""

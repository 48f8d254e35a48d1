"""SQL statements and use cases with known flaws. A schedule contains each of them and must detect it.

The product uses nothing of this module. The statements have the shape of those in `stage.py`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fencepost.adapters.postgres.database import Connection
from fencepost.adapters.postgres.lane_writer import lane_statement
from fencepost.domain.lease import Term
from fencepost.domain.transaction_state import ManagedTx
from integration.stage import LEASE_S, SIGNER, Owner, Stage, Write, allocation

# ---- writes

_LEASE = "SELECT 1 FROM signer_lease WHERE chain_id = $1 AND signer = $2 AND fencing_token = $3"

_UPDATE = (
    "UPDATE managed_tx SET state = 'ALLOCATED', nonce = 0, fencing_token = $3, version = version + 1"
    " WHERE tx_id = $4 AND state = 'QUEUED' AND "
)


def _fenced_by(statement: str) -> Write:
    async def write(connection: Connection, term: Term, tx: ManagedTx) -> bool:
        signer = term.signer
        return bool(
            await connection.fetchval(statement, signer.chain_id, signer.address, term.token, tx.tx_id)
        )

    return write


plain_exists = _fenced_by(f"{_UPDATE} EXISTS ({_LEASE}) RETURNING true")

plain_exists_and_row_token = _fenced_by(
    f"{_UPDATE} coalesce(fencing_token, 0) <= $3 AND EXISTS ({_LEASE}) RETURNING true"
)

lock_that_nothing_references = _fenced_by(
    f"WITH l AS ({_LEASE} FOR SHARE) {_UPDATE} EXISTS ({_LEASE}) RETURNING true"
)

row_token_alone = _fenced_by(
    f"{_UPDATE} chain_id = $1 AND signer = $2 AND coalesce(fencing_token, 0) <= $3 RETURNING true"
)

lock_and_check_in_one = _fenced_by(
    "WITH l AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared(hashtext($2)) AS locked)"
    " UPDATE managed_tx SET state = 'ALLOCATED', nonce = 0, fencing_token = $3 FROM l"
    f" WHERE tx_id = $4 AND state = 'QUEUED' AND l.locked IS NOT NULL AND EXISTS ({_LEASE}) RETURNING true"
)


def commit_lanes_without(words: str) -> Write:
    """Return the product's fenced write without these words of its statement."""

    async def write(connection: Connection, term: Term, tx: ManagedTx) -> bool:
        change = allocation(tx, nonce=0, before=None, term=term)
        statement, arguments = lane_statement([change], now_s=0.0, node="a test's node")
        assert words in statement, "the statement no longer contains these words"
        row = await connection.fetchrow(statement.replace(words, ""), *arguments)
        return row is not None and bool(row["applied"])

    return write


# ---- take-overs

_PLAIN_UPDATE = (
    "UPDATE signer_lease SET owner_node = $3, incarnation = $4, fencing_token = fencing_token + 1,"
    " expires_at = clock_timestamp() + make_interval(secs => $5)"
    " WHERE chain_id = $1 AND signer = $2 AND "
)


async def plain_take_over(stage: Stage, owner: Owner) -> int | None:
    """Take over without a lock that conflicts with FOR KEY SHARE: only the table's key can delay it."""
    connection = await stage.connect()
    token: int | None = await connection.fetchval(
        f"{_PLAIN_UPDATE} expires_at < clock_timestamp() RETURNING fencing_token", *_lease_arguments(owner)
    )
    return token


async def advisory_take_over(connection: Connection, owner: Owner) -> int | None:
    await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", SIGNER.address)
    token: int | None = await connection.fetchval(
        f"{_PLAIN_UPDATE} expires_at < clock_timestamp() RETURNING fencing_token", *_lease_arguments(owner)
    )
    return token


async def take_over_by_own_clock(stage: Stage, owner: Owner) -> int | None:
    """The client supplies the time, and its clock is a minute ahead."""
    token: int | None = await stage.admin.fetchval(
        f"{_PLAIN_UPDATE} expires_at < $6 RETURNING fencing_token",
        *_lease_arguments(owner),
        datetime.now(UTC) + timedelta(seconds=60),
    )
    return token


async def take_over_by_node_name(stage: Stage, owner: Owner) -> int | None:
    """Give a node of the same name its lease back with the same token."""
    token: int | None = await stage.admin.fetchval(
        "UPDATE signer_lease SET incarnation = $4, expires_at = clock_timestamp() + make_interval(secs => $5),"
        " fencing_token = CASE WHEN owner_node = $3 THEN fencing_token ELSE fencing_token + 1 END, owner_node = $3"
        " WHERE chain_id = $1 AND signer = $2 AND (owner_node = $3 OR expires_at < clock_timestamp())"
        " RETURNING fencing_token",
        *_lease_arguments(owner),
    )
    return token


async def upsert_poll(connection: Connection, owner: Owner) -> int | None:
    """Acquire or keep the lease in one statement that writes in both cases."""
    free = "s.expires_at < clock_timestamp()"
    token: int | None = await connection.fetchval(
        "INSERT INTO signer_lease AS s"
        " (chain_id, signer, owner_node, incarnation, fencing_token, acquired_at, expires_at)"
        " VALUES ($1, $2, $3, $4, 1, clock_timestamp(), clock_timestamp() + make_interval(secs => $5))"
        " ON CONFLICT (chain_id, signer) DO UPDATE SET"
        f" owner_node = CASE WHEN {free} THEN excluded.owner_node ELSE s.owner_node END,"
        f" fencing_token = CASE WHEN {free} THEN s.fencing_token + 1 ELSE s.fencing_token END,"
        f" expires_at = CASE WHEN {free} THEN excluded.expires_at ELSE s.expires_at END"
        " RETURNING CASE WHEN s.owner_node = $3 THEN s.fencing_token END",
        *_lease_arguments(owner),
    )
    return token


def _lease_arguments(owner: Owner) -> tuple[int, str, str, object, float]:
    return SIGNER.chain_id, SIGNER.address, owner.node, owner.incarnation, LEASE_S


# ---- time, release, nonces

IS_HELD_BY_START_OF_TRANSACTION = (
    "SELECT owner_node, fencing_token, expires_at > now() AS is_held"
    "  FROM signer_lease WHERE chain_id = $1 AND signer = $2"
)

RENEW_BY_START_OF_TRANSACTION = (
    "UPDATE signer_lease s SET expires_at = now() + make_interval(secs => $4)"
    "  FROM unnest($1::text::bigint[], $2::text::text[], $3::text::bigint[]) AS w (chain_id, signer, token)"
    " WHERE s.chain_id = w.chain_id AND s.signer = w.signer AND s.fencing_token = w.token RETURNING s.fencing_token"
)


async def release_by_delete(stage: Stage, term: Term) -> None:
    await stage.admin.execute("DELETE FROM signer_lease WHERE fencing_token = $1", term.token)
    await stage.admin.execute("DELETE FROM lease_term")  # its key would reject the second use of a token


async def lock_and_count_in_one(connection: Connection, term: Term, tx: ManagedTx) -> bool:
    """Wait for the lock, but read the largest nonce as of before the wait."""
    return bool(
        await connection.fetchval(
            f"WITH l AS MATERIALIZED ({_LEASE} FOR UPDATE)"
            " UPDATE managed_tx SET state = 'ALLOCATED', fencing_token = $3,"
            "  nonce = (SELECT coalesce(max(nonce) + 1, 0) FROM managed_tx WHERE chain_id = $1 AND signer = $2)"
            " WHERE tx_id = $4 AND EXISTS (SELECT 1 FROM l) RETURNING true",
            term.signer.chain_id,
            term.signer.address,
            term.token,
            tx.tx_id,
        )
    )


async def nonce_first_row_later(stage: Stage, connection: Connection, term: Term, tx: ManagedTx) -> None:
    """Use two transactions; the process dies between them."""
    nonce = await connection.fetchval(
        "INSERT INTO signer_nonce_cursor AS k (chain_id, signer, next_nonce, start_nonce, fencing_token)"
        " VALUES ($1, $2, 1, 0, $3)"
        " ON CONFLICT (chain_id, signer) DO UPDATE SET next_nonce = k.next_nonce + 1 RETURNING next_nonce - 1",
        term.signer.chain_id,
        term.signer.address,
        term.token,
    )
    await stage.kill(connection)
    await connection.execute(
        "UPDATE managed_tx SET nonce = $2, state = 'ALLOCATED' WHERE tx_id = $1", tx.tx_id, nonce
    )

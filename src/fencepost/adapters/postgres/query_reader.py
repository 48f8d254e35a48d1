"""Read transactions, signers and commands from PostgreSQL for API and command line: `sql/read.sql`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec

from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.adapters.postgres.rows import Row, signer_of
from fencepost.adapters.postgres.slow_retry import RetryingReads, repeat_while_slow
from fencepost.adapters.postgres.stored_json import decode_receipt, last_send
from fencepost.application.queries import (
    MAX_JOURNAL_ROWS,
    MAX_PAGE_SIZE,
    AttemptView,
    CommandView,
    Completion,
    CompletionCursor,
    ForkView,
    LanePlace,
    LeaseView,
    Part,
    PauseView,
    Reader,
    SignerView,
    TxFilter,
    TxView,
)
from fencepost.application.tx_history import JournalRow, Totals
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Address, BlockHash, Signer, TxHash
from fencepost.domain.states import CursorState, State, SubState
from fencepost.domain.transaction import Fees, TxType
from fencepost.domain.transaction_state import Kind, Purpose

_ABOVE_ALL = UUID(int=2**128 - 1)
_NOTHING: frozenset[Part] = frozenset()


class PostgresReader(Reader):
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._reads = RetryingReads(pool)

    # ---- transactions

    async def get(self, tx_id: UUID, parts: frozenset[Part] = _NOTHING) -> TxView | None:
        return await self._one(parts, "read_tx", tx_id)

    async def get_many(self, tx_ids: Sequence[UUID]) -> Sequence[TxView]:
        return [_tx_view(row) for row in await self._reads.fetch(sql("read_txs"), list(tx_ids))]

    async def by_request(
        self, signer: Signer, request_id: str, parts: frozenset[Part] = _NOTHING
    ) -> TxView | None:
        return await self._one(parts, "read_tx_by_request", signer.chain_id, signer.address, request_id)

    async def by_hash(
        self, chain_ids: Sequence[int], tx_hash: TxHash, parts: frozenset[Part] = _NOTHING
    ) -> TxView | None:
        return await self._one(parts, "read_tx_by_hash", list(chain_ids), tx_hash)

    async def page(
        self, wanted: TxFilter, *, below: UUID | None, limit: int, parts: frozenset[Part] = _NOTHING
    ) -> Sequence[TxView]:
        values: list[Any] = [
            below or _ABOVE_ALL,
            wanted.chain_id,
            _listed(wanted.addresses),
            _listed(wanted.states),
            _listed(wanted.sub_states),
            wanted.created_from,
            wanted.created_before,
            min(limit, MAX_PAGE_SIZE),
            Part.RECEIPT in parts,
        ]
        name = "read_tx_page"
        if wanted.tags:
            name = "read_tx_page_tagged"
            values.append(list(wanted.tags))
        views = await repeat_while_slow(lambda: self._page(name, values))
        if Part.ATTEMPTS in parts and views:
            attempts = await self._attempts([view.tx_id for view in views])
            views = [replace(view, attempts=attempts.get(view.tx_id, ())) for view in views]
        return views

    async def _page(self, name: str, values: Sequence[Any]) -> list[TxView]:
        async with self._pool.acquire() as connection, connection.transaction(readonly=True):
            # The best index depends on the filters, so PostgreSQL plans this statement each time.
            await connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
            return [_tx_view(row) for row in await connection.fetch(sql(name), *values)]

    async def _one(self, parts: frozenset[Part], name: str, *values: object) -> TxView | None:
        row = await self._reads.fetchrow(sql(name), *values)
        if row is None:
            return None
        view = _tx_view(row)
        if Part.ATTEMPTS in parts:
            view = replace(view, attempts=(await self._attempts([view.tx_id])).get(view.tx_id, ()))
        if Part.CONFIRMATIONS in parts:
            view = replace(view, fork=await self._last_fork(view.tx_id))
        if Part.HISTORY in parts:
            # Before the totals, so that the journal has no event that the totals lack.
            journal = await self._journal(view.tx_id)
            view = replace(view, journal=journal, journal_totals=await self._totals(view.tx_id))
        return view

    async def _attempts(self, tx_ids: list[UUID]) -> dict[UUID, tuple[AttemptView, ...]]:
        found: dict[UUID, tuple[AttemptView, ...]] = defaultdict(tuple)
        for row in await self._reads.fetch(sql("read_attempts"), tx_ids):
            found[row["tx_id"]] += (_attempt_view(row),)
        return found

    async def _last_fork(self, tx_id: UUID) -> ForkView | None:
        row = await self._pool.fetchrow(sql("read_last_fork_of_tx"), tx_id)
        if row is None:
            return None
        detail = msgspec.json.decode(row["detail"] or "{}")
        return ForkView(
            at=row["at"],
            replaced=tuple(
                BlockRef(number, BlockHash(block_hash)) for number, block_hash in detail.get("replaced", ())
            ),
        )

    async def _totals(self, tx_id: UUID) -> Totals | None:
        row = await self._pool.fetchrow(sql("read_totals_of_tx"), tx_id)
        if row is None:
            return None
        sends = msgspec.json.decode(row["sends"] or "[]")
        last = next((send for send in reversed(sends) if send[0]), (0, None, ""))
        return Totals(
            events=row["journal_count"],
            sends=sum(send[0] for send in sends),
            resubmits=row["submit_count"] - sum(1 for send in sends if send[0]),
            last_send_at=row["last_submit_at"],
            last_result=last[1],
            last_message=last[2] or None,
            changed_at=row["updated_at"],
        )

    async def _journal(self, tx_id: UUID) -> tuple[JournalRow, ...]:
        return tuple(
            JournalRow(
                id=row["id"],
                at=row["at"],
                event=row["event"],
                state=row["state"],
                detail=msgspec.json.decode(row["detail"]) if row["detail"] else {},
            )
            for row in await self._reads.fetch(sql("read_journal_of_tx"), tx_id, MAX_JOURNAL_ROWS)
        )

    async def completions(
        self, after: CompletionCursor, *, limit: int, addresses: Sequence[Address] | None = None
    ) -> Sequence[Completion]:
        found = await self._reads.fetch(
            sql("read_completions"),
            after.epoch,
            str(after.xid),
            after.id,
            _listed(addresses),
            min(limit, MAX_PAGE_SIZE),
        )
        return [_completion(row) for row in found]

    # ---- signers, nodes, commands

    async def signers(
        self,
        known: Sequence[Signer],
        *,
        after: Signer | None,
        limit: int,
        addresses: Sequence[Address] | None = None,
    ) -> Sequence[SignerView]:
        found = await self._reads.fetch(
            sql("read_signers"),
            [signer.chain_id for signer in known],
            [signer.address for signer in known],
            after.chain_id if after else 0,
            after.address if after else "",
            _listed(addresses),
            min(limit, MAX_PAGE_SIZE),
        )
        return [_signer_view(row) for row in found]

    async def signer(self, signer: Signer) -> SignerView:
        # "g" sorts after every address of the previous chain id.
        before = Signer(signer.chain_id - 1, Address("g"))
        return (await self.signers([signer], after=before, limit=1, addresses=[signer.address]))[0]

    async def lane_place(self, signer: Signer, tx_id: UUID | None = None) -> LanePlace:
        row = await self._reads.fetchrow(sql("read_lane_place"), signer.chain_id, signer.address, tx_id)
        if row is None:
            return LanePlace()
        pause = None
        if row["paused_at"] is not None:
            pause = PauseView(row["paused_by"], row["paused_at"], row["pause_reason"], bool(row["is_drain"]))
        return LanePlace(
            unmined=row["unmined"],
            mined=row["mined"],
            queued=row["queued"],
            unmined_before=row["unmined_before"],
            mined_count=row["mined_count"],
            queued_before=row["queued_before"],
            pause=pause,
        )

    async def owner_of(self, signer: Signer) -> str | None:
        row = await self._reads.fetchrow(sql("lease_owner"), signer.chain_id, signer.address)
        return str(row["owner_node"]) if row is not None and row["is_held"] else None

    async def command(self, command_id: int) -> CommandView | None:
        row = await self._reads.fetchrow(sql("read_command"), command_id)
        if row is None:
            return None
        return CommandView(
            id=row["id"],
            signer=signer_of(row),
            tx_id=row["tx_id"],
            command=row["command"],
            author=row["author"],
            reason=row["reason"],
            created_at=row["created_at"],
            done_at=row["done_at"],
            outcome=row["outcome"],
            applied=row["applied"],
        )

    async def ping(self) -> bool:
        return bool(await self._pool.fetchval(sql("read_ping")))


# ---- rows


def _listed(values: Sequence[str] | None) -> list[str] | None:
    return None if values is None else [str(value) for value in values]


def _tx_view(row: Row) -> TxView:
    block = None
    if row["is_mined"]:  # the block of a lost transaction is only the place where that was seen
        block = BlockRef(row["block_number"], BlockHash(row["block_hash"]))
    return TxView(
        tx_id=row["tx_id"],
        signer=signer_of(row),
        request_id=row["request_id"],
        kind=Kind(row["kind"]),
        state=State(row["state"]),
        sub_state=SubState(row["sub_state"]) if row["sub_state"] else None,
        nonce=row["nonce"],
        ending=State(row["ending"]) if row["ending"] else None,
        error=row["error"],
        tx_hash=TxHash(row["tx_hash"]) if row["tx_hash"] else None,
        block=block,
        submit_count=row["submit_count"],
        tags=tuple(row["tags"]),
        valid_until=row["valid_until"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        finished_at=row["finished_at"],
        payload=msgspec.json.decode(row["payload"]),
        receipt=decode_receipt(row["receipt"]) if row["receipt"] and block else None,
        confirmations=tuple(
            BlockRef(number, BlockHash(block_hash))
            for number, block_hash in msgspec.json.decode(row["confirmations"] or "[]")
        ),
        protect_reason=row["protect_reason"],
    )


def _attempt_view(row: Row) -> AttemptView:
    sent_count, last_result, last_message = last_send(row["sends"], row["attempt"])
    return AttemptView(
        number=row["attempt"],
        purpose=Purpose(row["purpose"]),
        type=TxType(row["tx_type"]),
        gas=row["gas"],
        fees=Fees(fee_cap_wei=int(row["fee_cap_wei"]), tip_wei=int(row["tip_wei"])),
        tx_hash=TxHash(row["tx_hash"]),
        sent_count=sent_count,
        last_result=last_result,
        last_message=last_message or None,
        created_at=row["created_at"],
        fee_source=row["fee_source"],
    )


def _completion(row: Row) -> Completion:
    return Completion(
        cursor=CompletionCursor(row["epoch"], int(row["xid"]), row["id"]),
        at=row["at"],
        event=row["event"],
        state=State(row["state"]),
        tx_id=row["tx_id"],
        signer=signer_of(row),
        request_id=row["request_id"],
        nonce=row["nonce"],
        tx_hash=TxHash(row["tx_hash"]) if row["tx_hash"] else None,
        block_number=row["block_number"],
        error=row["error"],
        state_now=State(row["state_now"]),
    )


def _displayed_state(row: Row) -> CursorState:
    """Return the state to display: PROTECT takes precedence over PAUSED, because it stops more."""
    state = CursorState(row["state"] or CursorState.ACTIVE)
    return CursorState.PAUSED if state is CursorState.ACTIVE and row["pause"] is not None else state


def _signer_view(row: Row) -> SignerView:
    lease = None
    if row["owner_node"] is not None and row["fencing_token"] > 0:
        lease = LeaseView(
            owner=row["owner_node"],
            token=row["fencing_token"],
            acquired_at=row["acquired_at"],
            held_until=row["held_until"],
        )
    return SignerView(
        signer=signer_of(row),
        state=_displayed_state(row),
        reason=row["reason"] or row["pause"] or None,
        is_paused=row["pause"] is not None,
        next_nonce=row["next_nonce"],
        start_nonce=row["start_nonce"],
        lease=lease,
        in_flight=row["in_flight"],
        queued=row["queued"],
        suspended=row["suspended"],
        used_by=row["used_by"],
        changed_at=row["changed_at"],
    )

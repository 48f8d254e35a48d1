"""The loops of the nonce service: a failure affects only its own chain or signer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Address, BlockHash, Signer, TxHash
from fencepost.domain.transaction_state import Receipt
from fencepost.errors import NonceUnavailable, RpcUnavailable
from fencepost.nonce.confirmer import ReceiptConfirmer
from fencepost.nonce.port import Hold, NoncePort
from fencepost.nonce.service import NonceService

ONE, OTHER = 1, 2
SIGNERS = [Address(f"0x{number:040x}") for number in range(3)]


class Rows:
    """A pool that answers the two statements of the loops."""

    def __init__(self, submitted: Sequence[dict[str, Any]] = ()) -> None:
        self.submitted = submitted

    async def fetch(self, statement: str, *_: object) -> list[dict[str, Any]]:
        if statement == sql("nonce_signers"):
            return [{"signer": address} for address in SIGNERS]
        return list(self.submitted)


class Reclaiming:
    """A scheme that cannot reclaim for some signers."""

    def __init__(self, broken: set[Signer]) -> None:
        self.broken = broken
        self.reclaimed: list[Signer] = []

    async def reclaim_expired(self, signer: Signer) -> int:
        if signer in self.broken:
            raise RpcUnavailable("no node answers")
        self.reclaimed.append(signer)
        return 1

    async def tend_once(self) -> int:
        return 0

    async def allocate(self, signer: Signer, *, count: int, **_: object) -> Sequence[Hold]:
        if signer in self.broken:
            raise NonceUnavailable("not now")
        return [Hold(signer, number, UUID(int=1)) for number in range(count)]


def service(scheme: Reclaiming, noted: list[tuple[str, dict[str, object]]] | None = None) -> NonceService:
    def note(event: str, /, **fields: object) -> None:
        if noted is not None:
            noted.append((event, fields))

    return NonceService(
        schemes={"leased": cast("NoncePort", scheme)},
        scheme_of=lambda _: "leased",
        pool=cast("Pool", Rows()),
        chain_ids=[ONE, OTHER],
        confirmers=(),
        default_hold_s=60,
        tend_interval_s=0.01,
        reclaim_interval_s=0.01,
        confirm_interval_s=0.01,
        note=note,
    )


async def test_a_dead_chain_or_signer_does_not_stop_reclaiming_for_others() -> None:
    dead = {Signer(ONE, address) for address in SIGNERS} | {Signer(OTHER, SIGNERS[0])}
    scheme = Reclaiming(dead)
    with pytest.raises(RpcUnavailable):  # set once all are done
        await service(scheme).reclaim_once()
    assert scheme.reclaimed == [Signer(OTHER, address) for address in SIGNERS[1:]]


async def test_the_loops_continue_for_other_chains_when_one_hangs() -> None:
    scheme = Reclaiming(set())
    hanging, enough = asyncio.Event(), asyncio.Event()

    async def reclaim(signer: Signer) -> int:
        if signer.chain_id == ONE:
            await hanging.wait()
        scheme.reclaimed.append(signer)
        if len(scheme.reclaimed) == 2 * len(SIGNERS):
            enough.set()
        return 0

    scheme.reclaim_expired = reclaim  # type: ignore[method-assign]  # as a chain without an answer does it
    loops = asyncio.create_task(service(scheme).run())
    async with asyncio.timeout(30):
        await enough.wait()
    loops.cancel()
    await asyncio.gather(loops, return_exceptions=True)
    assert {signer.chain_id for signer in scheme.reclaimed} == {OTHER}


async def test_issued_nonces_and_failures_are_noted() -> None:
    noted: list[tuple[str, dict[str, object]]] = []
    good, bad = Signer(ONE, SIGNERS[0]), Signer(ONE, SIGNERS[1])
    desk = service(Reclaiming({bad}), noted)
    await desk.allocate(good, count=3)
    with pytest.raises(NonceUnavailable):
        await desk.allocate(bad)
    assert noted == [
        ("nonce_allocated", {"scheme": "leased", "signer": good, "count": 3}),
        (
            "nonce_failed",
            {"scheme": "leased", "operation": "allocate", "code": "nonce_unavailable", "signer": bad},
        ),
    ]


class ChainOfReceipts:
    """A chain with one unreadable receipt, which fails every call for it."""

    chain_id = ONE

    def __init__(self, unreadable: TxHash) -> None:
        self.unreadable = unreadable
        self.is_dead = False

    async def receipts(self, hashes: Sequence[TxHash]) -> Sequence[Receipt | None]:
        if self.unreadable in hashes or self.is_dead:
            raise RpcUnavailable("the node's answer has no usable status")
        block = BlockRef(1, BlockHash("0x" + "bb" * 32))
        return [Receipt(tx_hash=one, block=block, succeeded=True, gas_used=1, raw={}) for one in hashes]


def closing_of(chain: ChainOfReceipts, count: int, closed: list[int]) -> ReceiptConfirmer:
    rows = [
        {"signer": SIGNERS[0], "nonce": number, "hold": UUID(int=number), "tx_hash": f"0x{number:064x}"}
        for number in range(count)
    ]

    async def refresh() -> None:
        if chain.is_dead:
            raise RpcUnavailable("no node answers")

    async def mark_used(hold: Hold, _tx_hash: TxHash) -> None:
        closed.append(hold.nonce)

    watch = SimpleNamespace(chain=chain, refresh=refresh)
    return ReceiptConfirmer(cast("Pool", Rows(rows)), cast("Any", watch), 0, mark_used)


async def test_one_unreadable_receipt_keeps_only_its_own_nonce_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def is_final(_self: ReceiptConfirmer, _receipt: Receipt) -> bool:
        return True

    monkeypatch.setattr(ReceiptConfirmer, "_is_final", is_final)
    closed: list[int] = []
    chain = ChainOfReceipts(TxHash(f"0x{4:064x}"))
    closing = closing_of(chain, 10, closed)
    with pytest.raises(RpcUnavailable, match="status"):
        await closing.run_once()
    assert closed == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    chain.is_dead = True
    with pytest.raises(RpcUnavailable, match="no node"):
        await closing.run_once()

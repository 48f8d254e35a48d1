"""While a strict lane waits for a receipt it signs the next transaction; changes before its turn count."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from fakes.bench import GWEI, SINK, STRICT, Bench, BenchNode, decode
from fencepost.application.ports import Header, KeyPort
from fencepost.domain.fees import FeeQuote
from fencepost.domain.ids import Address, TxHash
from fencepost.domain.send_result import SendResult
from fencepost.domain.states import State
from fencepost.domain.transaction import Call, Fees, SignedTx, UnsignedTx
from fencepost.domain.transaction_state import Intent, Receipt
from fencepost.errors import Fenced, SigningError

AT_ONCE = replace(STRICT, required=0, fetch_receipt_upon_entry=True, refuse_reverting=False)
TRANSFER = Intent(call=Call(to=SINK, value_wei=1), gas=21_000)


@dataclass(slots=True)
class WatchedKeys(KeyPort):
    """Signs with the bench's key and logs the order of events."""

    keys: KeyPort
    log: list[tuple[str, int]] = field(default_factory=list)
    fails_at: set[int] = field(default_factory=set)  # nonces, once each

    def addresses(self) -> Sequence[Address]:
        return self.keys.addresses()

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        for tx in txs:
            self.log.append(("signed", tx.nonce))
            if tx.nonce in self.fails_at:
                self.fails_at.discard(tx.nonce)
                raise SigningError("the key is away")
        return await self.keys.sign(address, txs)


@dataclass(slots=True)
class World:
    bench: Bench
    at: BenchNode
    keys: WatchedKeys

    async def requests(self, count: int) -> None:
        for _ in range(count):
            await self.bench.request(TRANSFER)

    def states(self) -> list[State]:
        return [tx.state for tx in self.bench.database.txs.values()]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Create a chain that mines with every send; sends and receipt reads are in the same log as signatures."""
    bench = Bench()
    keys = WatchedKeys(bench.keys)
    send, look = bench.chain.send, bench.chain.receipts_and_head

    async def mined_at_once(txs: Sequence[SignedTx]) -> Sequence[SendResult]:
        keys.log += [("sent", decode(tx.raw)[1].nonce) for tx in txs]
        results = await send(txs)
        bench.chain.mine()
        return results

    async def looked(hashes: Sequence[TxHash]) -> tuple[Sequence[Receipt | None], Header]:
        keys.log.append(("looked", len(hashes)))
        return await look(hashes)

    monkeypatch.setattr(bench.chain, "send", mined_at_once)
    monkeypatch.setattr(bench.chain, "receipts_and_head", looked)
    return World(bench, bench.node(AT_ONCE, keys=keys), keys)


def _meanwhile(world: World, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Awaitable[None]]) -> None:
    """Run something once, after the second transaction was signed and before its turn."""
    look = world.bench.chain.receipts_and_head
    left = [happens]

    async def looked(hashes: Sequence[TxHash]) -> tuple[Sequence[Receipt | None], Header]:
        for _ in range(100):
            await asyncio.sleep(0)
        assert ("signed", 1) in world.keys.log
        if left:
            await left.pop()()
        return await look(hashes)

    monkeypatch.setattr(world.bench.chain, "receipts_and_head", looked)


async def test_the_next_transaction_is_signed_once_during_the_receipt_read(world: World) -> None:
    await world.requests(3)
    await world.at.turn()
    assert world.states() == [State.CONFIRMED] * 3
    assert world.keys.log == [
        ("signed", 0), ("sent", 0), ("looked", 1),
        ("signed", 1), ("sent", 1), ("looked", 1),
        ("signed", 2), ("sent", 2), ("looked", 1),
    ]  # fmt: skip


async def test_a_changed_price_is_signed_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def dearer() -> None:
        world.at.lane.sending.quoted = (world.bench.clock.now_s(), FeeQuote.flat(Fees(77 * GWEI, 7 * GWEI)))

    _meanwhile(world, monkeypatch, dearer)
    await world.requests(2)
    await world.at.turn()
    assert world.states() == [State.CONFIRMED] * 2
    assert world.keys.log.count(("signed", 1)) == 2
    assert decode(world.bench.chain.sent[1].raw)[1].fees == Fees(77 * GWEI, 7 * GWEI)


async def test_a_failed_signature_is_repeated_in_its_turn(world: World) -> None:
    world.keys.fails_at = {1}
    await world.requests(2)
    await world.at.turn()
    assert world.states() == [State.CONFIRMED] * 2
    assert world.keys.log.count(("signed", 1)) == 2
    assert world.bench.sent_nonces() == [0, 1]


async def test_a_transaction_signed_ahead_is_not_sent_after_a_take_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = world.bench.node(AT_ONCE, name="other")

    async def taken_over() -> None:
        await world.at.node.ledger.release([world.at.lane.term])
        other.node.hint(world.bench.signer)
        await other.node.acquire_once()

    _meanwhile(world, monkeypatch, taken_over)
    await world.requests(2)
    with pytest.raises(Fenced):
        await world.at.turn()
    assert world.bench.sent_nonces() == [0]
    await other.turn(2)
    assert world.states() == [State.CONFIRMED] * 2
    assert world.bench.sent_nonces() == [0, 1]


async def test_nothing_is_signed_ahead_when_confirmations_are_required(world: World) -> None:
    deeper = world.bench.node(replace(AT_ONCE, required=1), keys=world.keys)
    await world.requests(2)
    await deeper.turn()
    assert world.keys.log == [("signed", 0), ("sent", 0), ("looked", 1)]

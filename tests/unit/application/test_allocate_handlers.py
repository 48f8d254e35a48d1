"""Transactions built by a caller's handler: whatever it does, its nonce is consumed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from fakes.bench import CHAIN_ID, GWEI, QUICK, SINK, STRICT, Bench, BenchNode, decode
from fakes.rounds import run_alone
from fencepost.application.hooks import NonceContext
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.states import State
from fencepost.domain.transaction import Call, UnsignedTx
from fencepost.domain.transaction_state import Purpose
from fencepost.errors import RpcUnavailable


@pytest.fixture
def bench() -> Bench:
    return Bench()


def built(context: NonceContext, *, nonce: int | None = None, chain_id: int = CHAIN_ID) -> UnsignedTx:
    return UnsignedTx(
        chain_id=chain_id,
        nonce=context.nonce if nonce is None else nonce,
        call=Call(to=SINK, value_wei=5),
        gas=30_000,
        fees=context.fees,
    )


async def unsigned(context: NonceContext) -> UnsignedTx:
    return built(context)


async def ends(bench: Bench, node: BenchNode, tx_id: UUID) -> State:
    for _ in range(4):
        await node.turn()
        bench.chain.mine()
        bench.clock.advance(31)
    await node.turn()
    return bench.state(tx_id)


async def test_the_transaction_of_a_handler_is_signed_and_sent(bench: Bench) -> None:
    node = bench.node()
    before = await bench.request()
    tx_id = await bench.with_nonce(node, unsigned)
    after = await bench.request()
    await node.turn()
    assert [bench.tx(each).nonce for each in (before, tx_id, after)] == [0, 1, 2]
    said = decode(bench.tx(tx_id).latest.signed.raw)[1]
    assert (said.call, said.gas, said.nonce) == (Call(to=SINK, value_wei=5), 30_000, 1)
    assert await ends(bench, node, tx_id) is State.CONFIRMED
    assert bench.events(tx_id)[:4] == ["Receive", "AssignNonce", "Sign", "SendResult"]


async def test_bytes_signed_by_the_handler_are_sent_unchanged(bench: Bench) -> None:
    node = bench.node()
    raws: list[bytes] = []

    async def signed(context: NonceContext) -> bytes:
        (made,) = await bench.keys.sign(bench.signer.address, [built(context)])
        raws.append(made.raw)
        return made.raw

    tx_id = await bench.with_nonce(node, signed)
    assert await ends(bench, node, tx_id) is State.CONFIRMED
    assert bench.chain.sent[0].raw == raws[0]


async def test_the_transaction_of_a_handler_can_be_bumped(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.with_nonce(node, unsigned)
    await node.turn()
    await bench.ask("bump", tx_id)
    await node.turn()
    first, second = (decode(attempt.signed.raw)[1] for attempt in bench.tx(tx_id).attempts)
    assert (second.call, second.gas, second.nonce) == (first.call, first.gas, first.nonce)
    assert second.fees.fee_cap_wei > first.fees.fee_cap_wei


async def failing(_context: NonceContext) -> UnsignedTx:
    raise RuntimeError("boom")


async def with_another_nonce(context: NonceContext) -> UnsignedTx:
    return built(context, nonce=context.nonce + 1)


async def for_another_chain(context: NonceContext) -> UnsignedTx:
    return built(context, chain_id=1)


async def no_transaction(_context: NonceContext) -> bytes:
    return b"\x02nonsense"


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (failing, "RuntimeError: boom"),
        (with_another_nonce, "was given nonce 0"),
        (for_another_chain, "on chain 1"),
        (no_transaction, "the handler failed"),
    ],
)
async def test_a_failed_handler_costs_a_filler_and_leaves_no_gap(
    bench: Bench, handler: object, error: str
) -> None:
    node = bench.node()
    tx_id = await bench.with_nonce(node, handler)  # type: ignore[arg-type]  # the parameters are handlers
    after = await bench.request()
    assert await ends(bench, node, tx_id) is State.FAILED
    tx = bench.tx(tx_id)
    assert error in (tx.error or "")
    assert (tx.nonce, tx.latest.purpose) == (0, Purpose.FILLER)
    assert (bench.state(after), bench.tx(after).nonce) == (State.CONFIRMED, 1)
    assert node.observer.counts["handler_failed"] == 1


async def test_a_hanging_handler_is_cancelled(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.application.broadcast.HANDLER_TIMEOUT_S", 0.01)
    node = bench.node()

    async def hanging(_context: NonceContext) -> UnsignedTx:
        await asyncio.Event().wait()
        raise AssertionError

    tx_id = await bench.with_nonce(node, hanging)
    assert await ends(bench, node, tx_id) is State.FAILED


async def test_a_handler_that_is_gone_before_its_nonce_costs_none(bench: Bench) -> None:
    node = bench.node(STRICT)
    tx_id = await bench.with_nonce(node, unsigned)
    after = await bench.request()
    node.handlers.clear()  # its process exited
    await node.turn()
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.CANCELLED, None)
    assert (bench.state(after), bench.tx(after).nonce) == (State.SUBMITTED, 0)


async def test_the_next_lease_holder_fills_the_nonce_of_a_handler_whose_process_died(bench: Bench) -> None:
    node = bench.node()

    async def dying(_context: NonceContext) -> UnsignedTx:
        raise asyncio.CancelledError

    tx_id = await bench.with_nonce(node, dying)
    with pytest.raises(asyncio.CancelledError):
        await node.turn()
    assert (bench.state(tx_id), bench.tx(tx_id).nonce, bench.tx(tx_id).attempts) == (State.ALLOCATED, 0, ())
    await node.release()
    other = bench.node(name="other")
    assert await ends(bench, other, tx_id) is State.FAILED
    assert bench.tx(tx_id).error == "the process that had its handler has ended"


async def test_a_silent_endpoint_does_not_fail_the_handler(bench: Bench) -> None:
    node = bench.node(replace(QUICK, chain_query="off"))
    tx_id = await bench.with_nonce(node, unsigned)
    await node.node.heads_once(CHAIN_ID)
    await node.node.acquire_once()
    bench.chain.offline = True
    with pytest.raises(RpcUnavailable):
        await run_alone(node.lane)
    assert bench.state(tx_id) is State.ALLOCATED
    bench.chain.offline = False
    assert await ends(bench, node, tx_id) is State.CONFIRMED


async def test_a_permanently_rejected_transaction_of_a_handler_is_filled(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.with_nonce(node, unsigned)
    bench.chain.script_next_sends(SendResult(SendCategory.FATAL, "exceeds block gas limit"))
    assert await ends(bench, node, tx_id) is State.FAILED
    assert bench.tx(tx_id).error == "exceeds block gas limit"


async def test_the_handler_gets_the_fees(bench: Bench) -> None:
    node = bench.node(replace(QUICK, fee_cap_wei=2 * GWEI))
    shown: list[NonceContext] = []

    async def listening(context: NonceContext) -> UnsignedTx:
        shown.append(context)
        return built(context)

    tx_id = await bench.with_nonce(node, listening)
    await node.turn()
    assert (shown[0].tx_id, shown[0].signer, shown[0].nonce) == (tx_id, bench.signer, 0)
    assert shown[0].fees.fee_cap_wei == 2 * GWEI


async def test_a_handler_whose_request_expired_or_was_cancelled_is_forgotten(bench: Bench) -> None:
    node = bench.node(STRICT)
    await bench.request()
    await node.turn()  # the window is full: later requests stay queued
    cancelled = await bench.with_nonce(node, unsigned)
    expired = await bench.with_nonce(node, unsigned)
    await bench.ask("cancel", cancelled)
    await node.turn()
    assert set(node.handlers) == {expired}
    bench.clock.advance(31)
    bench.chain.mine(2)
    await node.turn(3)
    assert (bench.state(cancelled), bench.state(expired)) == (State.CANCELLED, State.FAILED)
    assert node.handlers == {}

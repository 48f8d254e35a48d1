"""A node dies or pauses at any call to a port; another takes over, and everything finishes exactly once.

The test runs a scenario with the failure at the first call, then at the second, and so on until the scenario completes without
it. After each run it checks the chain and the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

import pytest

from fakes.bench import CHAIN_ID, QUICK, SINK, STRICT, Bench, BenchNode
from fakes.failing_call import Died, FailingCall, FailureMode
from fencepost.application.hooks import NonceContext
from fencepost.application.lane import HandlerOnOtherNode, LaneSettings, LeaseUntrusted, StateMoved
from fencepost.domain.ids import TxHash
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.states import TERMINAL, State
from fencepost.domain.transaction import Call, UnsignedTx
from fencepost.errors import Fenced
from fencepost.testing import InMemoryLedger, LostResponse

MAX_CALLS = 400
LEASE_AND_SKEW_S = 20.0

Play = Callable[[Bench, BenchNode], Awaitable[None]]


# ---- scenarios


async def _turns(bench: Bench, node: BenchNode, count: int) -> None:
    for _ in range(count):
        await node.turn()
        bench.chain.mine()
        bench.clock.advance(2)


async def plain(bench: Bench, node: BenchNode) -> None:
    await _turns(bench, node, 6)


async def with_lost_answers(bench: Bench, node: BenchNode) -> None:
    bench.chain.script_next_sends(LostResponse.AFTER, LostResponse.BEFORE, None, LostResponse.AFTER)
    await _turns(bench, node, 6)


async def with_refusals(bench: Bench, node: BenchNode) -> None:
    bench.chain.script_next_sends(
        SendResult(SendCategory.FATAL, "no"), SendResult(SendCategory.UNDERPRICED, "more")
    )
    await _turns(bench, node, 6)


async def with_commands(bench: Bench, node: BenchNode) -> None:
    await node.turn()
    first, second = [tx.tx_id for tx in bench.database.txs.values()][:2]
    await bench.ask("cancel", first)
    await bench.ask("bump", second)
    await _turns(bench, node, 5)


async def with_a_reorg(bench: Bench, node: BenchNode) -> None:
    await _turns(bench, node, 3)
    bench.chain.reorg(2)
    await _turns(bench, node, 4)


async def with_a_handler(bench: Bench, node: BenchNode) -> None:
    async def handler(context: NonceContext) -> UnsignedTx:
        return UnsignedTx(CHAIN_ID, context.nonce, Call(to=SINK), 30_000, context.fees)

    await bench.with_nonce(node, handler)
    await _turns(bench, node, 6)


SCENARIOS: list[Play] = [plain, with_lost_answers, with_refusals, with_commands, with_a_reorg, with_a_handler]


# ---- the harness


def node_with_cut(bench: Bench, policy: LaneSettings, cut: FailingCall) -> BenchNode:
    ledger = cut.wrap(InMemoryLedger(bench.database, node="old"))
    return bench.node(
        policy, name="old", ledger=ledger, chain=cut.wrap(bench.chain), keys=cut.wrap(bench.keys)
    )


def is_quiet(bench: Bench) -> bool:
    ended = all(tx.state in TERMINAL for tx in bench.database.txs.values())
    return ended and all(asked.outcome is not None for asked in bench.database.commands.values())


async def finish(bench: Bench, policy: LaneSettings) -> None:
    """Run another node with working ports until everything has finished."""
    node = bench.node(policy, name="new")
    bench.clock.advance(LEASE_AND_SKEW_S)
    for _ in range(60):
        try:
            await node.turn()
        except HandlerOnOtherNode:
            await node.release()  # as the runtime does; the request of a dead process expires
        if is_quiet(bench):
            return
        bench.chain.mine()
        bench.clock.advance(31)
    raise AssertionError(f"not ended: {[(tx.nonce, tx.state) for tx in bench.database.txs.values()]}")


async def mined_by_tx(bench: Bench) -> dict[UUID, list[TxHash]]:
    """Return the mined hashes by their transaction; an unknown hash is a KeyError."""
    found: dict[UUID, list[TxHash]] = {}
    head = await bench.chain.head()
    for number in range(head.number + 1):
        block = await bench.chain.block(number)
        assert block is not None
        for tx_hash in block.tx_hashes:
            found.setdefault(bench.database.hashes[CHAIN_ID, tx_hash], []).append(tx_hash)
    return found


async def check(bench: Bench) -> None:
    txs = bench.database.txs.values()
    with_nonce = [tx for tx in txs if tx.nonce is not None]
    cursor = bench.database.cursors[bench.signer]
    assert sorted(tx.held_nonce() for tx in with_nonce) == list(range(cursor.next_nonce))
    mined = await mined_by_tx(bench)
    assert mined.keys() == {tx.tx_id for tx in with_nonce}
    for tx in with_nonce:
        assert mined[tx.tx_id] == [tx.hash]
    assert {a.signed.hash for tx in txs for a in tx.attempts} >= {signed.hash for signed in bench.chain.sent}
    commanded = {asked.command.tx_id for asked in bench.database.commands.values()}
    for tx in txs:
        if tx.kind == "intent" and tx.tx_id not in commanded and tx.sub_state is None and tx.ending is None:
            assert tx.state is State.CONFIRMED


async def dies(play: Play, policy: LaneSettings, at_call: int, how: FailureMode) -> bool:
    """Tell whether the scenario reached its failing call."""
    bench = Bench()
    await bench.requests(3)
    cut = FailingCall(at_call, how)
    old = node_with_cut(bench, policy, cut)
    with suppress(Died):
        await play(bench, old)
    await finish(bench, policy)
    await check(bench)
    return cut.reached.is_set()


async def is_paused(play: Play, policy: LaneSettings, at_call: int, how: FailureMode) -> bool:
    """Let the old owner pause through its lease and wake up in the middle of a step, when everything is finished."""
    bench = Bench()
    await bench.requests(3)
    cut = FailingCall(at_call, how)
    old = node_with_cut(bench, policy, cut)

    async def until_woken() -> None:
        try:
            await play(bench, old)
        except (Fenced, LeaseUntrusted, StateMoved):
            pass
        except AssertionError as error:  # the renewal failed, so its lane was dropped
            if "does not hold" not in str(error):
                raise

    async with asyncio.TaskGroup() as group:
        task = group.create_task(until_woken())
        reached = group.create_task(cut.reached.wait())
        await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            reached.cancel()
            return False
        await finish(bench, policy)
        written = len(bench.database.journal)
        tokens = {row.token for row in bench.database.journal if row.token is not None}
        cut.resume.set()
        await task
    late = [row for row in bench.database.journal[written:] if row.token is not None]
    assert not [row for row in late if row.node == "old" and row.token in tokens]
    if not is_quiet(bench):  # it made another call after it resumed
        await finish(bench, policy)
    await check(bench)
    return True


@pytest.mark.parametrize("policy", [STRICT, QUICK], ids=["strict", "pipelined"])
@pytest.mark.parametrize("play", SCENARIOS, ids=lambda play: play.__name__)
@pytest.mark.parametrize(
    "how", [FailureMode.DIES_BEFORE, FailureMode.DIES_AFTER], ids=lambda how: how.name.lower()
)
async def test_a_crash_at_any_call_loses_and_duplicates_nothing(
    play: Play, policy: LaneSettings, how: FailureMode
) -> None:
    for at_call in range(1, MAX_CALLS):
        if not await dies(play, replace(policy, state_timeout_s=1.0), at_call, how):
            assert at_call > 40
            return
    raise AssertionError("the scenario has more calls than expected")


@pytest.mark.parametrize("policy", [STRICT, QUICK], ids=["strict", "pipelined"])
@pytest.mark.parametrize("play", SCENARIOS, ids=lambda play: play.__name__)
@pytest.mark.parametrize(
    "how", [FailureMode.PAUSED_BEFORE, FailureMode.PAUSED_AFTER], ids=lambda how: how.name.lower()
)
async def test_an_owner_that_resumes_late_changes_nothing(
    play: Play, policy: LaneSettings, how: FailureMode
) -> None:
    for at_call in range(1, MAX_CALLS):
        if not await is_paused(play, policy, at_call, how):
            assert at_call > 40
            return
    raise AssertionError("the scenario has more calls than expected")

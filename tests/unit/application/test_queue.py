"""The head of a lane's queue: what leaves it, what stays, and what has expired."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from fakes.bench import QUICK, STRICT, Bench
from fencepost.application.queue import Queue
from fencepost.domain.ids import Address, Signer
from fencepost.domain.states import State
from fencepost.domain.transaction import Call
from fencepost.domain.transaction_state import Intent, Kind, ManagedTx

SIGNER = Signer(31_337, Address("0x" + "a1" * 20))


def waiting(seq: int, *, until_s: float | None = None) -> ManagedTx:
    intent = Intent(call=Call(to=SIGNER.address))
    return ManagedTx(uuid4(), SIGNER, seq, Kind.INTENT, intent, valid_until_s=until_s)


@pytest.fixture
def txs() -> list[ManagedTx]:
    return [waiting(seq) for seq in range(6)]


@pytest.fixture
def queue(txs: list[ManagedTx]) -> Queue:
    made = Queue()
    made.load(txs)
    return made


@pytest.mark.parametrize("gone", [(), (0,), (0, 1, 2), (5,), (0, 2), (2, 4), (0, 1, 2, 3, 4, 5)])
def test_removed_requests_are_gone_and_the_others_keep_their_order(
    queue: Queue, txs: list[ManagedTx], gone: tuple[int, ...]
) -> None:
    queue.leave([txs[at] for at in gone])
    assert list(queue) == [tx for at, tx in enumerate(txs) if at not in gone]


def test_removing_an_unknown_request_changes_nothing(queue: Queue, txs: list[ManagedTx]) -> None:
    unknown = waiting(9)
    queue.leave([unknown, txs[0]])
    queue.update(unknown)
    assert list(queue) == txs[1:]


def test_a_changed_request_keeps_its_position(queue: Queue, txs: list[ManagedTx]) -> None:
    changed = txs[3].changed(version=2)
    queue.update(changed)
    assert list(queue) == [*txs[:3], changed, *txs[4:]]


def test_an_expired_request_is_found_at_any_position() -> None:
    queue = Queue()
    never, late, later = waiting(0), waiting(1, until_s=10.0), waiting(2, until_s=20.0)
    queue.load([never, later, late])
    assert queue.expired(9.9) == []
    assert queue.expired(10.0) == [late]
    queue.leave([late])
    assert queue.expired(19.9) == []
    assert queue.expired(20.0) == [later]


def test_the_request_with_the_first_deadline_may_leave_before_it() -> None:
    queue = Queue()
    first, second = waiting(0, until_s=10.0), waiting(1, until_s=20.0)
    queue.load([first, second])
    queue.leave([first])
    assert queue.expired(15.0) == []
    assert queue.expired(25.0) == [second]


async def test_changes_to_allocated_transactions_do_not_touch_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    node = bench.node(replace(QUICK, max_in_flight=2))
    txs = await bench.requests(50)
    await node.turn()
    anew: list[object] = []
    monkeypatch.setattr(Queue, "_hold", lambda _queue, txs: anew.append(txs))
    bench.chain.mine(2)
    await node.turn()
    assert anew == []  # receipts, ends, allocations and sends: the queue is as it was, but for its head
    assert [bench.state(tx_id) for tx_id in txs[:4]] == [State.CONFIRMED] * 2 + [State.SUBMITTED] * 2


async def test_a_command_in_the_middle_of_the_queue_is_seen_by_the_next_allocation() -> None:
    bench = Bench()
    node = bench.node(STRICT)
    first, dropped, last = await bench.requests(3)
    await node.turn()
    await bench.ask("cancel", dropped)
    await node.turn()
    bench.chain.mine(2)
    await node.turn(2)
    assert [bench.state(tx_id) for tx_id in (first, dropped, last)] == [
        State.CONFIRMED,
        State.CANCELLED,
        State.SUBMITTED,
    ]
    assert bench.tx(last).nonce == 1

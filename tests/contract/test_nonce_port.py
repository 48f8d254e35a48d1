"""The contract of every nonce scheme, on a real PostgreSQL and a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import pytest
import pytest_asyncio

from fakes.ledger_lab import new
from fencepost.application.ports import AcceptOutcome
from fencepost.dev.redis import EmbeddedRedis
from fencepost.errors import HoldLost, InvalidRequest, NonceConflict, RpcUnavailable, SignerUsedOtherwise
from fencepost.nonce.port import NoncePort
from nonce_lab import ALICE, BOB, SCHEMES, NonceLab, nonces, open_nonce_lab, tx_hash

CALLERS = 64


@pytest_asyncio.fixture
async def lab(dsn: str, redis_server: EmbeddedRedis) -> AsyncIterator[NonceLab]:
    async with open_nonce_lab(dsn, redis_server.url) as made:
        yield made


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def port(lab: NonceLab, scheme: str) -> NoncePort:
    return await lab.open(scheme)


async def test_64_concurrent_callers_get_different_nonces_without_a_gap(port: NoncePort) -> None:
    async def caller(number: int) -> list[int]:
        got: list[int] = []
        for _ in range(3):
            got += nonces(await port.allocate(ALICE, count=1 + number % 3, hold_for_s=60))
        return got

    given = [nonce for got in await asyncio.gather(*map(caller, range(CALLERS))) for nonce in got]
    assert sorted(given) == list(range(len(given)))


async def test_each_signer_has_its_own_sequence(port: NoncePort) -> None:
    assert nonces(await port.allocate(ALICE, count=2, hold_for_s=60)) == [0, 1]
    assert nonces(await port.allocate(BOB, count=3, hold_for_s=60)) == [0, 1, 2]
    assert nonces(await port.allocate(ALICE, hold_for_s=60)) == [2]


async def test_a_sequence_begins_at_the_nonce_of_the_chain(lab: NonceLab, port: NoncePort) -> None:
    lab.seen[ALICE] = 41
    assert nonces(await port.allocate(ALICE, count=2, hold_for_s=60)) == [41, 42]


async def test_the_smallest_released_nonce_is_issued_first(port: NoncePort) -> None:
    held = await port.allocate(ALICE, count=6, hold_for_s=60)
    for index in (4, 1, 3):
        await port.mark_recyclable(held[index])
    assert nonces(await port.allocate(ALICE, hold_for_s=60)) == [1]
    assert nonces(await port.allocate(ALICE, count=4, hold_for_s=60)) == [3, 4, 6, 7]


async def test_marks_may_be_repeated(port: NoncePort) -> None:
    sent, used, free = await port.allocate(ALICE, count=3, hold_for_s=60)
    for _ in range(2):
        await port.mark_submitted(sent, tx_hash(1))
    for _ in range(2):
        await port.mark_used(sent, tx_hash(1))
    await port.mark_submitted(sent, tx_hash(1))  # late but correct
    await port.mark_used(sent)
    for _ in range(2):
        await port.mark_used(used)
    for _ in range(2):
        await port.mark_recyclable(free)


async def test_a_different_hash_is_rejected(port: NoncePort) -> None:
    (hold,) = await port.allocate(ALICE, hold_for_s=60)
    await port.mark_submitted(hold, tx_hash(1))
    with pytest.raises(NonceConflict):
        await port.mark_submitted(hold, tx_hash(2))
    with pytest.raises(NonceConflict):
        await port.mark_used(hold, tx_hash(2))
    await port.mark_used(hold, tx_hash(1))
    with pytest.raises(NonceConflict):
        await port.mark_submitted(hold, tx_hash(2))


async def test_a_sent_or_used_nonce_is_not_released(port: NoncePort) -> None:
    sent, used = await port.allocate(ALICE, count=2, hold_for_s=60)
    await port.mark_submitted(sent, tx_hash(1))
    await port.mark_used(used)
    for hold in (sent, used):
        with pytest.raises(NonceConflict):
            await port.mark_recyclable(hold)
    assert nonces(await port.allocate(ALICE, hold_for_s=60)) == [2]


async def test_a_token_marks_only_its_own_hold(port: NoncePort) -> None:
    (first,) = await port.allocate(ALICE, hold_for_s=60)
    with pytest.raises(HoldLost):
        await port.mark_submitted(replace(first, token=uuid4()), tx_hash(1))
    with pytest.raises(HoldLost):
        await port.mark_used(replace(first, nonce=77))
    await port.mark_recyclable(first)
    (second,) = await port.allocate(ALICE, hold_for_s=60)
    assert second.nonce == first.nonce
    for mark in (port.mark_submitted(first, tx_hash(1)), port.mark_used(first), port.mark_recyclable(first)):
        with pytest.raises(HoldLost):
            await mark
    await port.mark_submitted(second, tx_hash(2))


async def test_an_expired_hold_is_issued_again_after_reclaiming(lab: NonceLab, port: NoncePort) -> None:
    (short,) = await port.allocate(ALICE, hold_for_s=5)
    (long,) = await port.allocate(ALICE, hold_for_s=500)
    assert await port.reclaim_expired(ALICE) == 0
    await port.tend_once()
    await lab.pass_time(6)
    assert nonces(await port.allocate(ALICE, hold_for_s=60)) == [2]  # an expired hold is not released yet
    assert await port.reclaim_expired(ALICE) == 1
    with pytest.raises(HoldLost):
        await port.mark_submitted(short, tx_hash(1))
    assert nonces(await port.allocate(ALICE, count=2, hold_for_s=60)) == [short.nonce, 3]
    await port.mark_submitted(long, tx_hash(2))


async def test_a_hold_with_a_hash_is_not_reclaimed(lab: NonceLab, port: NoncePort) -> None:
    sent, idle = await port.allocate(ALICE, count=2, hold_for_s=5)
    await port.mark_submitted(sent, tx_hash(1))
    await lab.pass_time(6)
    assert await port.reclaim_expired(ALICE) == 1
    assert nonces(await port.allocate(ALICE, count=2, hold_for_s=60)) == [idle.nonce, 2]
    await port.mark_used(sent, tx_hash(1))


async def test_a_nonce_that_the_chain_has_used_is_not_issued_again(lab: NonceLab, port: NoncePort) -> None:
    held = await port.allocate(ALICE, count=4, hold_for_s=5)
    await port.mark_recyclable(held[0])  # but sent by the caller
    await port.tend_once()
    await lab.pass_time(6)
    lab.seen[ALICE] = 2
    assert await port.reclaim_expired(ALICE) == 2
    assert nonces(await port.allocate(ALICE, count=3, hold_for_s=60)) == [2, 3, 4]
    await port.mark_used(held[1])


async def test_nothing_is_released_while_the_chain_does_not_answer(
    lab: NonceLab, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(_signer: object) -> int:
        raise RpcUnavailable("no answer")

    port = await lab.open(scheme)
    await port.allocate(ALICE, hold_for_s=5)
    await port.tend_once()
    await lab.pass_time(6)
    monkeypatch.setattr(port._store, "chain_nonce", silent)  # type: ignore[attr-defined]  # every scheme has them
    with pytest.raises(RpcUnavailable):
        await port.reclaim_expired(ALICE)
    status = await port.status(ALICE)
    assert status is not None
    assert (status.released, status.held) == (0, 1)


async def test_a_clean_restart_repeats_and_loses_no_nonce(lab: NonceLab, scheme: str) -> None:
    before = await lab.open(scheme)
    held = await before.allocate(ALICE, count=5, hold_for_s=60)
    await before.mark_submitted(held[0], tx_hash(1))
    await before.mark_recyclable(held[3])
    await before.close()
    after = await lab.open(scheme)
    assert nonces(await after.allocate(ALICE, count=3, hold_for_s=60)) == [3, 5, 6]
    await after.mark_used(held[0], tx_hash(1))
    await after.mark_submitted(held[1], tx_hash(2))


async def test_a_consumed_nonce_is_never_issued_again(lab: NonceLab, scheme: str) -> None:
    port = await lab.open(scheme)
    first, second = await port.allocate(ALICE, count=2, hold_for_s=5)
    await port.mark_used(first)
    await port.mark_submitted(second, tx_hash(2))
    await port.mark_used(second, tx_hash(2))
    await lab.pass_time(6)
    assert await port.reclaim_expired(ALICE) == 0
    await port.close()
    await lab.pass_time(100)
    after = await lab.open(scheme)
    assert await after.reclaim_expired(ALICE) == 0
    assert nonces(await after.allocate(ALICE, hold_for_s=60)) == [2]


async def test_the_status_counts_nonces_by_state(lab: NonceLab, port: NoncePort) -> None:
    assert await port.status(ALICE) is None
    held = await port.allocate(ALICE, count=5, hold_for_s=5)
    await port.mark_submitted(held[0], tx_hash(1))
    await port.mark_used(held[1])
    await port.mark_recyclable(held[3])
    await port.tend_once()
    await lab.pass_time(6)
    status = await port.status(ALICE)
    assert status is not None
    assert (status.held, status.submitted, status.consumed, status.released) == (2, 1, 1, 1)
    assert status.first_gap == 3
    assert status.next_nonce >= 5


@pytest.mark.parametrize("wrong", [{"count": 0}, {"count": 1001}, {"hold_for_s": 0.0}, {"hold_for_s": 1e9}])
async def test_requests_have_bounds(port: NoncePort, wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest):
        await port.allocate(ALICE, **{"count": 1, "hold_for_s": 60.0, **wrong})  # type: ignore[arg-type]  # a float where an int belongs


async def test_the_nonce_service_rejects_a_managed_signer(lab: NonceLab, port: NoncePort) -> None:
    core = lab.core()
    assert (await core.accept([new(signer=ALICE)]))[0].outcome is AcceptOutcome.CREATED
    with pytest.raises(SignerUsedOtherwise):
        await port.allocate(ALICE, hold_for_s=60)


async def test_a_nonce_only_signer_accepts_no_transactions(lab: NonceLab, port: NoncePort) -> None:
    await port.allocate(ALICE, hold_for_s=60)
    core = lab.core()
    refused, taken = await core.accept([new(signer=ALICE), new(signer=BOB)])
    assert refused.outcome is AcceptOutcome.NONCE_ONLY
    assert "nonce-only" in refused.detail
    assert taken.outcome is AcceptOutcome.CREATED

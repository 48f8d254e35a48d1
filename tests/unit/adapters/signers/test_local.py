"""Keys in the process: loaded, rejected with a reason, and never shown."""

from __future__ import annotations

import asyncio

import pytest

from fencepost.adapters.signers import KeyRing
from fencepost.adapters.signers.local import MAX_TXS_PER_TURN, LocalKeys
from fencepost.errors import SettingError, SigningError
from unit.adapters.signers.key_material import (
    ADDRESSES,
    PLAIN,
    SECRETS,
)


@pytest.mark.parametrize(
    "text", [SECRETS[0], "0x" + SECRETS[0], "0X" + SECRETS[0].upper(), f" {SECRETS[0]}\n"]
)
def test_a_key_is_read_in_any_spelling(text: str) -> None:
    assert LocalKeys.from_hex([text]).addresses() == (ADDRESSES[0],)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "private key 2 is not 64 hex digits"),
        (SECRETS[1] + "4", "private key 2 is not 64 hex digits"),
        ("0x" + SECRETS[1][:-1] + "g", "private key 2 is not 64 hex digits"),
        ("0" * 64, "private key 2 is not a valid"),
        ("f" * 64, "private key 2 is not a valid"),
    ],
)
def test_a_malformed_key_is_identified_by_its_position(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        LocalKeys.from_hex([SECRETS[0], text])
    assert len(text) < 60 or text[:60] not in str(caught.value)


def test_a_duplicate_key_is_rejected() -> None:
    with pytest.raises(SettingError, match=f"{ADDRESSES[0]} is given twice"):
        LocalKeys.from_hex([SECRETS[0], "0x" + SECRETS[0]])


def test_key_holders_show_only_addresses() -> None:
    keys = LocalKeys.from_hex(SECRETS)
    for shown in (repr(keys), str(keys), repr(KeyRing([keys])), repr(vars(keys))):
        assert ADDRESSES[0] in shown
        assert not any(secret in shown for secret in SECRETS)


async def _count_turns(stop: asyncio.Event) -> int:
    turns = 0
    while not stop.is_set():
        await asyncio.sleep(0)
        turns += 1
    return turns


@pytest.mark.parametrize(
    ("batches", "size"), [(1, 10 * MAX_TXS_PER_TURN), (20, MAX_TXS_PER_TURN), (10 * MAX_TXS_PER_TURN, 1)]
)
async def test_the_event_loop_runs_while_a_large_batch_is_signed(batches: int, size: int) -> None:
    """A turn of the loop signs no more than its share, however the work arrives."""
    keys = LocalKeys.from_hex(SECRETS[:1])
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        counting = group.create_task(_count_turns(stop))
        async with asyncio.TaskGroup() as signing:
            tasks = [signing.create_task(keys.sign(ADDRESSES[0], [PLAIN] * size)) for _ in range(batches)]
        stop.set()
    assert counting.result() >= batches * size // MAX_TXS_PER_TURN
    assert all(len(task.result()) == size for task in tasks)


async def test_a_small_batch_does_not_wait_for_a_large_one() -> None:
    keys = LocalKeys.from_hex(SECRETS[:1])
    async with asyncio.TaskGroup() as group:
        large = group.create_task(keys.sign(ADDRESSES[0], [PLAIN] * 20 * MAX_TXS_PER_TURN))
        small = group.create_task(keys.sign(ADDRESSES[0], [PLAIN]))
        await small
        assert not large.done()


async def test_a_cancelled_caller_delays_no_other() -> None:
    keys = LocalKeys.from_hex(SECRETS[:1])
    leaving = asyncio.ensure_future(keys.sign(ADDRESSES[0], [PLAIN] * 1000 * MAX_TXS_PER_TURN))
    staying = asyncio.ensure_future(keys.sign(ADDRESSES[0], [PLAIN] * 3 * MAX_TXS_PER_TURN))
    await asyncio.sleep(0)
    leaving.cancel()
    assert len(await staying) == 3 * MAX_TXS_PER_TURN
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert not keys._waiting


async def test_a_failure_in_one_batch_stays_in_that_batch() -> None:
    keys = LocalKeys.from_hex(SECRETS[:1])
    nonsense = PLAIN.changed(nonce="seven")  # an argument that only a bug would pass
    async with asyncio.TaskGroup() as group:
        good = group.create_task(keys.sign(ADDRESSES[0], [PLAIN] * 2 * MAX_TXS_PER_TURN))
        for wrong, error in ((PLAIN.changed(gas=-1), SigningError), (nonsense, TypeError)):
            with pytest.raises(error):
                await keys.sign(ADDRESSES[0], [PLAIN, wrong])
    assert len(good.result()) == 2 * MAX_TXS_PER_TURN

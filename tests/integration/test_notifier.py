"""Notifications between processes: they arrive, resume after a cut, and never accumulate without bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from fencepost.adapters.postgres import notifier as notifier_module
from fencepost.adapters.postgres.notifier import CHANNEL, MAX_PENDING, Notifier
from fencepost.domain.ids import Address, Signer
from integration.stage import PATIENCE_S, SIGNER, Stage, pool_of, until
from integration.test_api_database_down import cabled


class Listener:
    def __init__(self) -> None:
        self.heard: list[Signer] = []
        self._more = asyncio.Event()

    def __call__(self, signer: Signer) -> None:
        self.heard.append(signer)
        self._more.set()

    async def hears(self, signer: Signer) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while signer not in self.heard:
                self._more.clear()
                await self._more.wait()


@asynccontextmanager
async def notifier_of(dsn: str, on_hint: Callable[[Signer], None]) -> AsyncIterator[Notifier]:
    async with pool_of(dsn) as pool:
        notifier = Notifier(pool, dsn, on_hint=on_hint)
        running = asyncio.get_running_loop().create_task(notifier.run())
        try:
            yield notifier
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def listeners(on: Stage) -> set[int]:
    found = await on.admin.fetch(
        "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
        " AND state = 'idle'"
    )
    return {row["pid"] for row in found}


def other_signer(number: int) -> Signer:
    return Signer(SIGNER.chain_id, Address(f"0x{number:040x}"))


async def test_a_hint_reaches_this_process_immediately_and_another_one_soon(on: Stage) -> None:
    here, there = Listener(), Listener()
    async with notifier_of(on.dsn, here) as notifier, notifier_of(on.dsn, there):

        async def both_listen() -> bool:
            return len(await listeners(on)) == 2

        await until(both_listen)
        notifier.hint(SIGNER)
        assert here.heard == [SIGNER]
        await there.hears(SIGNER)


async def test_many_concurrent_hints_all_arrive(on: Stage) -> None:
    here, there = Listener(), Listener()
    signers = [other_signer(number) for number in range(250)]  # more than one notification can carry
    async with notifier_of(on.dsn, here) as notifier, notifier_of(on.dsn, there):

        async def both_listen() -> bool:
            return len(await listeners(on)) == 2

        await until(both_listen)
        for signer in signers:
            notifier.hint(signer)
        await there.hears(signers[-1])
        assert set(there.heard) == set(signers)


async def test_hints_resume_after_the_listening_connection_was_cut(on: Stage) -> None:
    heard = Listener()
    async with notifier_of(on.dsn, heard) as notifier:

        async def listens() -> bool:
            return len(await listeners(on)) == 1

        await until(listens)
        (before,) = await listeners(on)
        await on.admin.execute("SELECT pg_terminate_backend($1)", before)

        async def listens_again() -> bool:
            return bool(await listeners(on) - {before})

        await until(listens_again)
        await on.admin.execute("SELECT pg_notify($1, $2)", CHANNEL, str(other_signer(1)))
        await heard.hears(other_signer(1))
        notifier.hint(SIGNER)  # sending continues as well
        assert SIGNER in heard.heard


async def test_a_silent_listening_connection_is_replaced(on: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier_module, "CHECK_INTERVAL_S", 0.1)
    monkeypatch.setattr(notifier_module, "CHECK_TIMEOUT_S", 1.0)
    heard = Listener()
    async with cabled(on.dsn) as (cable, through), notifier_of(through, heard) as notifier:
        await notifier.wait_until_listening(within_s=PATIENCE_S)
        cable.silence()

        async def hears() -> bool:
            await on.admin.execute("SELECT pg_notify($1, $2)", CHANNEL, str(other_signer(1)))
            return other_signer(1) in heard.heard

        await until(hears)


async def test_a_payload_that_is_no_signer_is_ignored(on: Stage) -> None:
    heard = Listener()
    async with notifier_of(on.dsn, heard):

        async def listens() -> bool:
            return len(await listeners(on)) == 1

        await until(listens)
        await on.admin.execute("SELECT pg_notify($1, $2)", CHANNEL, f"x :: nonsense:0x {other_signer(1)}")
        await heard.hears(other_signer(1))
        assert heard.heard == [other_signer(1)]


async def test_unread_hints_are_bounded(dsn: str) -> None:
    async with pool_of(dsn) as pool:
        notifier = Notifier(pool, dsn, on_hint=lambda _: None)
        for number in range(MAX_PENDING + 100):
            notifier.hint(other_signer(number))
        assert len(notifier._pending) == MAX_PENDING


class Counted:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


async def test_growth_of_the_event_log_is_announced_only_to_nodes_with_readers(on: Stage) -> None:
    here, there = Listener(), Listener()
    async with notifier_of(on.dsn, here) as writer, notifier_of(on.dsn, there) as reader:
        grown_here, grown_there = Counted(), Counted()
        writer.on_log_growth, reader.on_log_growth = grown_here, grown_there

        async def both_listen() -> bool:
            return len(await listeners(on)) == 2

        await until(both_listen)
        writer.log_grown()
        writer.hint(SIGNER)
        await there.hears(SIGNER)  # everything that was sent before it has arrived, too
        assert (grown_here.times, grown_there.times) == (2, 0)
        reader.readers_wait()

        async def woken() -> bool:
            writer.log_grown()
            return grown_there.times > 0

        await until(woken)


async def test_a_node_does_not_notify_itself_of_its_own_readers(on: Stage) -> None:
    here = Listener()
    async with notifier_of(on.dsn, here) as notifier:

        async def listens() -> bool:
            return len(await listeners(on)) == 1

        await until(listens)
        grown = Counted()
        notifier.on_log_growth = grown
        notifier.readers_wait()
        notifier._queue_hint(SIGNER)
        await here.hears(SIGNER)
        notifier.log_grown()
        notifier._queue_hint(other_signer(1))
        await here.hears(other_signer(1))
        assert grown.times == 1

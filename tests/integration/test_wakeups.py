"""Hints between processes: they arrive, come again after a cut, and never pile up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fencepost.adapters.postgres.wakeups import CHANNEL, MOST_PENDING, Wakeups
from fencepost.domain.ids import Address, Signer
from integration.stage import PATIENCE_S, SIGNER, Stage, pool_of, until


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
async def wakeups_of(dsn: str, on_hint: Callable[[Signer], None]) -> AsyncIterator[Wakeups]:
    async with pool_of(dsn) as pool:
        wakeups = Wakeups(pool, dsn, on_hint=on_hint)
        running = asyncio.get_running_loop().create_task(wakeups.run())
        try:
            yield wakeups
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


async def test_a_hint_reaches_this_process_at_once_and_another_one_soon(on: Stage) -> None:
    here, there = Listener(), Listener()
    async with wakeups_of(on.dsn, here) as wakeups, wakeups_of(on.dsn, there):

        async def both_listen() -> bool:
            return len(await listeners(on)) == 2

        await until(both_listen)
        wakeups.hint(SIGNER)
        assert here.heard == [SIGNER]
        await there.hears(SIGNER)


async def test_many_hints_at_once_all_arrive(on: Stage) -> None:
    here, there = Listener(), Listener()
    signers = [other_signer(number) for number in range(250)]  # more than one notification can carry
    async with wakeups_of(on.dsn, here) as wakeups, wakeups_of(on.dsn, there):

        async def both_listen() -> bool:
            return len(await listeners(on)) == 2

        await until(both_listen)
        for signer in signers:
            wakeups.hint(signer)
        await there.hears(signers[-1])
        assert set(there.heard) == set(signers)


async def test_hints_come_again_after_the_listening_connection_was_cut(on: Stage) -> None:
    heard = Listener()
    async with wakeups_of(on.dsn, heard) as wakeups:

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
        wakeups.hint(SIGNER)  # and sending goes on as well
        assert SIGNER in heard.heard


async def test_words_that_are_no_signer_are_passed_over(on: Stage) -> None:
    heard = Listener()
    async with wakeups_of(on.dsn, heard):

        async def listens() -> bool:
            return len(await listeners(on)) == 1

        await until(listens)
        await on.admin.execute("SELECT pg_notify($1, $2)", CHANNEL, f"x :: nonsense:0x {other_signer(1)}")
        await heard.hears(other_signer(1))
        assert heard.heard == [other_signer(1)]


async def test_hints_that_nobody_fetches_do_not_pile_up_without_bound(dsn: str) -> None:
    async with pool_of(dsn) as pool:
        wakeups = Wakeups(pool, dsn, on_hint=lambda _: None)
        for number in range(MOST_PENDING + 100):
            wakeups.hint(other_signer(number))
        assert len(wakeups._pending) == MOST_PENDING

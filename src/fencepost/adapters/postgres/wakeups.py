"""LISTEN/NOTIFY as hints between nodes: "something happened for this signer". Polling is the truth.

Three things are told: a signer has work (its text), a signer's lease is free again (`!` and its text), and the list of
nodes has changed (`@`).

A lost notification costs at most one polling interval, so nothing here is retried hard or awaited by anybody.
Hints that come close together are sent as one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import asyncpg

from fencepost.adapters.postgres.database import CONNECT_ERRORS, Connection
from fencepost.adapters.postgres.pool import Pool
from fencepost.application.ports import Requested
from fencepost.domain.ids import Address, Signer
from fencepost.domain.managed import ManagedTx

_log = logging.getLogger(__name__)

CHANNEL = "fencepost_wake"
COALESCE_S = 0.01
RECONNECT_S = 1.0
MOST_PENDING = 5_000
_MOST_PAYLOAD = 100  # signers a notification: its text must stay below 8,000 bytes
_FREED = "!"
_MEMBERS = "@"


class Wakeups:
    def __init__(
        self,
        pool: Pool,
        dsn: str,
        *,
        urgent: Pool | None = None,
        on_hint: Callable[[Signer], object],
        on_requested: Requested | None = None,
        on_freed: Callable[[Signer], object] = lambda _: None,
        on_members: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_hint` may answer True: this process works for the signer itself, so nobody else need be told.

        `on_requested` is a hint that is about new requests only, and brings those that a lane may take as they are;
        without it, it is one like any other.

        What somebody waits for (`freed`, `members`) goes through `urgent`, where no crowd stands before it.
        """
        self._pool = pool
        self._urgent = urgent or pool
        self._dsn = dsn
        self._on_hint = on_hint
        self._on_requested = on_requested or (lambda signer, *_: on_hint(signer))
        self._on_freed = on_freed
        self.on_members = on_members
        self._pending: set[Signer] = set()
        self._has_pending = asyncio.Event()
        self._hears = asyncio.Event()
        self._is_deaf = False  # and was told to be

    def hint(self, signer: Signer) -> None:
        """To this process at once, to the others soon."""
        if self._on_hint(signer) is not True:
            self._tell(signer)

    def requested(self, signer: Signer, arrived: Sequence[ManagedTx], behind: Collection[int]) -> None:
        """As `hint`, for requests that were stored just now."""
        if self._on_requested(signer, arrived, behind) is not True:
            self._tell(signer)

    def _tell(self, signer: Signer) -> None:
        if len(self._pending) < MOST_PENDING:
            self._pending.add(signer)
            self._has_pending.set()

    async def freed(self, signers: Sequence[Signer]) -> None:
        """To the others, now."""
        await self._notify(self._urgent, [f"{_FREED}{signer}" for signer in signers])

    async def members(self) -> None:
        """To the others, now."""
        await self._notify(self._urgent, [_MEMBERS])

    async def _notify(self, pool: Pool, words: Sequence[str]) -> None:
        try:
            for start in range(0, len(words), _MOST_PAYLOAD):
                payload = " ".join(words[start : start + _MOST_PAYLOAD])
                await pool.execute("SELECT pg_notify($1, $2)", CHANNEL, payload)
        except CONNECT_ERRORS as error:
            _log.warning("a wake-up was not sent (%s); polling will find the work", type(error).__name__)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send(), name="wakeups-send")
            group.create_task(self._listen(), name="wakeups-listen")

    async def until_heard(self, *, within_s: float) -> None:
        """Until what others tell is heard here. Who can't hear in time begins all the same, and polls."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._hears.wait()

    async def _send(self) -> None:
        while True:
            await self._has_pending.wait()
            await asyncio.sleep(COALESCE_S)
            self._has_pending.clear()
            signers, self._pending = sorted(self._pending), set()
            await self._notify(self._pool, [str(signer) for signer in signers])

    async def _listen(self) -> None:
        while True:
            try:
                connection = await asyncpg.connect(self._dsn, timeout=5)
                try:
                    await self._listen_on(connection)
                finally:
                    connection.terminate()
            except CONNECT_ERRORS as error:
                if not self._is_deaf:  # told once, however long it lasts
                    _log.warning("wake-ups are off for now (%s); polling goes on", type(error).__name__)
                self._is_deaf = True
            await asyncio.sleep(RECONNECT_S)

    async def _listen_on(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        await connection.add_listener(CHANNEL, self._heard)
        self._hears.set()
        if self._is_deaf:
            _log.warning("wake-ups are back")
            self._is_deaf = False
        await ended.wait()

    def _heard(self, _connection: Connection, _pid: int, _channel: str, payload: object) -> None:
        for word in str(payload).split():
            if word == _MEMBERS:
                self.on_members()
                continue
            hear = self._on_freed if word.startswith(_FREED) else self._on_hint
            chain_id, _, address = word.removeprefix(_FREED).partition(":")
            if chain_id.isdigit():
                hear(Signer(int(chain_id), Address(address)))

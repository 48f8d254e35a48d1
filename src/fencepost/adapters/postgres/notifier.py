"""Send hints between nodes with LISTEN/NOTIFY. Hints only save time; polling is the truth.

A signer has work (`chain:address`), a signer's lease was released (`!chain:address`), the list of nodes has changed (`@`),
callers of a node wait for events (`?name`), and the event log has grown (`+`). A node sends the last one only while callers
of another node wait: without readers, commits notify of no events.

A lost notification costs at most one polling interval, so nothing retries or waits for one. Hints within `COALESCE_S` are
sent as one notification.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from uuid import uuid4

import asyncpg

from fencepost.adapters.postgres.database import CONNECT_ERRORS, Connection
from fencepost.adapters.postgres.pool import Pool
from fencepost.application.ports import Requested
from fencepost.domain.ids import Address, Signer
from fencepost.domain.transaction_state import ManagedTx

_log = logging.getLogger(__name__)

CHANNEL = "fencepost_wake"
COALESCE_S = 0.01
RECONNECT_S = 1.0
CHECK_INTERVAL_S = 15.0
CHECK_TIMEOUT_S = 10.0
MAX_PENDING = 5_000
_MAX_WORDS = 100  # words per notification: PostgreSQL limits the payload to 8,000 bytes
_FREED = "!"
_MEMBERS = "@"
_GROWN = "+"
_READERS = "?"
READERS_INTERVAL_S = 5.0  # between two notifications that callers wait
READERS_LIFE_S = 3 * READERS_INTERVAL_S


class Notifier:
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
        """Create a notifier; it sends and receives while `run` runs.

        `on_hint` returns True if this process holds the signer's lease: then no other node is notified.

        `on_requested` receives hints about new requests, with the requests that a lane may use without loading them;
        by default they are handled as other hints.

        `freed` and `members` use the pool `urgent`, because other nodes wait for them and other work must not delay them.
        """
        self._pool = pool
        self._urgent = urgent or pool
        self._dsn = dsn
        self._on_hint = on_hint
        self._on_requested = on_requested or (lambda signer, *_: on_hint(signer))
        self._on_freed = on_freed
        self.on_members = on_members
        self.on_log_growth: Callable[[], object] = lambda: None
        self._own_name = uuid4().hex[
            :12
        ]  # marks this process's notifications, which PostgreSQL also delivers here
        self._readers_until_s = -math.inf  # until when callers of other nodes wait for events
        self._readers_told_s = -math.inf
        self._words: set[str] = set()  # to be sent beside hints about signers
        self._pending: set[Signer] = set()
        self._has_pending = asyncio.Event()
        self._is_listening = asyncio.Event()
        self._is_disconnected = False  # not connected, and logged

    def hint(self, signer: Signer) -> None:
        """Notify this process at once; notify the other nodes soon unless this process holds the lease."""
        self.log_grown()
        if self._on_hint(signer) is not True:
            self._queue_hint(signer)

    def requested(self, signer: Signer, arrived: Sequence[ManagedTx], behind: Collection[int]) -> None:
        """Do as `hint`, for requests that were just stored."""
        self.log_grown()
        if self._on_requested(signer, arrived, behind) is not True:
            self._queue_hint(signer)

    def log_grown(self) -> None:
        """Wake the readers of the event log: those of this process at once, those of other nodes soon."""
        self.on_log_growth()
        if self._readers_until_s > time.monotonic():
            self._queue_word(_GROWN)

    def readers_wait(self) -> None:
        """Tell the other nodes, now and then, that callers of this node wait for events."""
        now_s = time.monotonic()
        if now_s >= self._readers_told_s + READERS_INTERVAL_S:
            self._readers_told_s = now_s
            self._queue_word(_READERS + self._own_name)

    def _queue_word(self, word: str) -> None:
        self._words.add(word)
        self._has_pending.set()

    def _queue_hint(self, signer: Signer) -> None:
        if len(self._pending) < MAX_PENDING:
            self._pending.add(signer)
            self._has_pending.set()

    async def freed(self, signers: Sequence[Signer]) -> None:
        """Notify the other nodes at once that these leases were released."""
        await self._notify(self._urgent, [f"{_FREED}{signer}" for signer in signers])

    async def members(self) -> None:
        """Notify the other nodes at once that the list of nodes has changed."""
        await self._notify(self._urgent, [_MEMBERS])

    async def _notify(self, pool: Pool, words: Sequence[str]) -> None:
        try:
            for start in range(0, len(words), _MAX_WORDS):
                payload = " ".join(words[start : start + _MAX_WORDS])
                await pool.execute("SELECT pg_notify($1, $2)", CHANNEL, payload)
        except CONNECT_ERRORS as error:
            _log.warning(
                "a notification was not sent (%s); other nodes find the work by polling", type(error).__name__
            )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send(), name="notifier-send")
            group.create_task(self._listen(), name="notifier-listen")

    async def wait_until_listening(self, *, within_s: float) -> None:
        """Wait until notifications of other nodes are received, at most `within_s`; without them the node polls."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._is_listening.wait()

    async def _send(self) -> None:
        while True:
            await self._has_pending.wait()
            await asyncio.sleep(COALESCE_S)
            self._has_pending.clear()
            signers, self._pending = sorted(self._pending), set()
            words, self._words = sorted(self._words), set()
            await self._notify(self._pool, [*(str(signer) for signer in signers), *words])

    async def _listen(self) -> None:
        while True:
            try:
                connection = await asyncpg.connect(self._dsn, timeout=5)
                try:
                    await self._listen_on(connection)
                finally:
                    connection.terminate()
            except CONNECT_ERRORS as error:
                if not self._is_disconnected:  # log once per outage
                    _log.warning(
                        "notifications are not received (%s); the node polls and reconnects",
                        type(error).__name__,
                    )
                self._is_disconnected = True
            await asyncio.sleep(RECONNECT_S)

    async def _listen_on(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        await connection.add_listener(CHANNEL, self._on_notification)
        self._is_listening.set()
        if self._is_disconnected:
            _log.warning("notifications are received again")
            self._is_disconnected = False
        while not ended.is_set():
            try:
                async with asyncio.timeout(CHECK_INTERVAL_S):
                    await ended.wait()
            except TimeoutError:
                # A connection that was cut without a FIN looks like one without notifications.
                await connection.execute("SELECT 1", timeout=CHECK_TIMEOUT_S)

    def _on_notification(self, _connection: Connection, _pid: int, _channel: str, payload: object) -> None:
        for word in str(payload).split():
            if word == _MEMBERS:
                self.on_members()
                continue
            if word == _GROWN:
                self.on_log_growth()
                continue
            if word.startswith(_READERS):
                if word != _READERS + self._own_name:
                    self._readers_until_s = time.monotonic() + READERS_LIFE_S
                continue
            handle = self._on_freed if word.startswith(_FREED) else self._on_hint
            chain_id, _, address = word.removeprefix(_FREED).partition(":")
            if chain_id.isdigit():
                handle(Signer(int(chain_id), Address(address)))

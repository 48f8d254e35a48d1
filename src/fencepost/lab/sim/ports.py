"""The ports as a simulated process has them: each call takes a while, may fail as planned, and is written down.

A call is three moments: it is made, it takes effect, it is answered. A process can be killed or paused between any two
of them, and a fault can take the answer away after the effect.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol
from uuid import UUID

from fencepost.application.ports import LaneWrite, Written
from fencepost.domain.ids import Address
from fencepost.domain.lease import Term
from fencepost.domain.send import SendCategory, SendResult
from fencepost.domain.transaction import SignedTx, UnsignedTx
from fencepost.errors import RpcUnavailable, SigningError
from fencepost.lab.sim.chain import FakeChain
from fencepost.lab.sim.keys import SimKeys, decode
from fencepost.lab.sim.ledger import FakeLedger
from fencepost.lab.sim.loop import Process, SimLoop
from fencepost.lab.sim.plan import Fault
from fencepost.lab.sim.records import Records

# Most calls are quick, some are slow enough for others to come between.
_DELAYS_S: Final = (
    *(0.002 * n for n in range(40)),
    *(0.02 * n for n in range(16)),
    *(0.1 * n for n in range(8)),
)

LATE_ANSWERS: Final = 0.2


class DatabaseGone(OSError):
    """The connection broke; whether the statement took effect is not known."""


class SimClock:
    """A process's own clock: it runs like all others, but may be set."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.ahead_s = 0.0

    def now_s(self) -> float:
        return self._loop.time() + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Weather(Protocol):
    """What is wrong with the world around a process at the moment."""

    def is_database_down(self, slot: int) -> bool: ...
    def is_chain_down(self, slot: int) -> bool: ...
    def nonce_lie(self, slot: int) -> int: ...
    def pause(self, process: Process, seconds: float) -> None: ...
    def kill(self, slot: int, *, start_again_in_s: float) -> None: ...


@dataclass(slots=True)
class CallCounter:
    """Of one slot, whichever process runs there: which fault is due at this call."""

    faults: Sequence[Fault]
    _counts: Counter[str] = field(default_factory=Counter)
    _due: dict[tuple[str, int], list[Fault]] = field(init=False)

    def __post_init__(self) -> None:
        self._due = defaultdict(list)
        for fault in self.faults:
            self._due[fault.call, fault.nth].append(fault)

    def next(self, call: str) -> Fault | None:
        for name in (call, "any"):
            self._counts[name] += 1
            due = self._due.get((name, self._counts[name]))
            if due:
                return due[0]
        return None

    def refusal(self) -> Fault | None:
        """What the node will say to the send that comes next, if that is planned."""
        due = self._due.get(("send", self._counts["send"] + 1), ())
        return next((fault for fault in due if fault.kind == "send_refused"), None)

    def end(self) -> None:
        self._due.clear()


@dataclass(slots=True)
class Gate:
    """The way from one process to the world."""

    process: Process
    slot: int
    loop: SimLoop
    rng: random.Random
    counter: CallCounter
    weather: Weather
    records: Records

    async def through(
        self, name: str, effect: Callable[[], Awaitable[Any]], *, failure: Callable[[], BaseException]
    ) -> Any:
        """`failure` is what the caller sees when there is no answer."""
        fault = self.counter.next(name)
        kind = "" if fault is None else fault.kind
        self.records.say(self.process.name, name)
        await self._take_time(kind, fault)
        if kind in ("db_refused", "rpc_refused", "key_failure"):
            self._struck(fault, name)
            raise failure()
        answer = await effect()
        if self.process.is_gone:
            raise asyncio.CancelledError
        if kind in ("db_answer_lost", "rpc_answer_lost"):
            self._struck(fault, name)
            raise failure()
        if kind in ("crash_after", "pause_after") and fault is not None:
            await self._stop(fault, name)
        if self.rng.random() < LATE_ANSWERS:
            await asyncio.sleep(self._delay_s())
            self._must_live()
        return answer

    async def _take_time(self, kind: str, fault: Fault | None) -> None:
        self._must_live()
        if fault is not None and kind in ("crash_before", "pause_before"):
            await self._stop(fault, "")
        await asyncio.sleep(self._delay_s())
        if fault is not None and kind == "slow_call":
            self._struck(fault, "")
            await asyncio.sleep(fault.length_s)
        self._must_live()

    def _delay_s(self) -> float:
        return _DELAYS_S[self.rng.getrandbits(6)]

    def _must_live(self) -> None:
        if self.process.is_gone:
            raise asyncio.CancelledError

    def _struck(self, fault: Fault | None, name: str) -> None:
        assert fault is not None  # noqa: S101 - a kind comes with its fault
        self.records.struck(fault.kind, self.process.name, name)

    async def _stop(self, fault: Fault, name: str) -> None:
        self._struck(fault, name)
        if fault.kind.startswith("crash"):
            self.weather.kill(self.slot, start_again_in_s=fault.length_s)
            await self.loop.create_future()  # nothing comes after this but the end
        self.weather.pause(self.process, fault.length_s)
        await asyncio.sleep(0)
        self._must_live()


class LedgerPort:
    """The `Ledger` of one process."""

    _PLAIN = (
        "ask",
        "load",
        "load_queue",
        "load_commands",
        "load_finished",
        "signers_with_work",
        "signers_finished_since",
        "get",
        "find_by_request",
    )

    def __init__(self, gate: Gate, ledger: FakeLedger, clock: SimClock, incarnation: UUID) -> None:
        self.inner = ledger
        self._gate = gate
        self._clock = clock
        self._incarnation = incarnation
        for name in self._PLAIN:
            setattr(self, name, partial(self._plain, name))

    async def _plain(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return await self._call(name, lambda: getattr(self.inner, name)(*args, **kwargs))

    async def _call(self, name: str, effect: Callable[[], Awaitable[Any]]) -> Any:
        async def reached() -> Any:
            if self._gate.weather.is_database_down(self._gate.slot):
                raise DatabaseGone("the database does not answer")
            return await effect()

        return await self._gate.through(name, reached, failure=partial(DatabaseGone, "no answer"))

    async def acquire(self, signers: Any) -> Sequence[Term]:
        began_s = self._clock.now_s()

        async def effect() -> Sequence[Term]:
            terms = await self.inner.acquire(signers)
            self._gate.records.acquired(self._incarnation, self._gate.process.name, terms)
            return [replace(term, renewed_at_s=began_s) for term in terms]

        return await self._call("acquire", effect)  # type: ignore[no-any-return]  # the gate passes it on

    async def renew(self, terms: Sequence[Term]) -> Sequence[Term]:
        began_s = self._clock.now_s()

        async def effect() -> Sequence[Term]:
            standing = await self.inner.renew(terms)
            self._gate.records.renewed(self._incarnation, standing)
            return [term.renewed(began_s) for term in standing]

        return await self._call("renew", effect)  # type: ignore[no-any-return]  # the gate passes it on

    async def release(self, terms: Sequence[Term]) -> None:
        async def effect() -> None:
            await self.inner.release(terms)
            self._gate.records.released(terms)

        await self._call("release", effect)

    async def commit(self, write: LaneWrite) -> Written:
        self._gate.records.about_to_write(write, is_trusted=write.term.is_trusted(self._clock.now_s()))

        async def effect() -> Written:
            written = await self.inner.commit(write)
            self._gate.records.wrote(self._incarnation, write, written)
            return written

        return await self._call("commit", effect)  # type: ignore[no-any-return]  # the gate passes it on


class ChainPort:
    """The `Chain` of one process."""

    _READS = (
        "balance_wei",
        "receipts",
        "knows",
        "head",
        "block",
        "block_receipts",
        "estimate_gas",
        "quote_fees",
        "revert_reason",
    )

    def __init__(self, gate: Gate, chain: FakeChain) -> None:
        self.inner = chain
        self._gate = gate
        for name in self._READS:
            setattr(self, name, partial(self._read, name))

    @property
    def chain_id(self) -> int:
        return self.inner.chain_id

    async def _read(self, name: str, *args: Any, **kwargs: Any) -> Any:
        async def reached() -> Any:
            if self._gate.weather.is_chain_down(self._gate.slot):
                raise RpcUnavailable("the node does not answer")
            return await getattr(self.inner, name)(*args, **kwargs)

        return await self._gate.through(name, reached, failure=partial(RpcUnavailable, "no answer"))

    async def nonce(self, address: Address, tag: Any) -> int:
        found: int = await self._read("nonce", address, tag)
        return max(0, found + self._gate.weather.nonce_lie(self._gate.slot))

    async def send(self, txs: Sequence[SignedTx], *, token: int = 0) -> Sequence[SendResult]:
        records, who = self._gate.records, self._gate.process.name
        records.about_to_send(who, token, [tx.raw for tx in txs])
        unknown = [SendResult(SendCategory.UNKNOWN, "no answer") for _ in txs]
        refusal = self._gate.counter.refusal()

        async def reached() -> Sequence[SendResult]:
            if self._gate.weather.is_chain_down(self._gate.slot):
                return unknown
            return await self.inner.send(txs) if refusal is None else self._refused(txs, refusal)

        try:
            results: Sequence[SendResult] = await self._gate.through(
                "send", reached, failure=partial(RpcUnavailable, "no answer")
            )
        except RpcUnavailable:
            results = unknown
        for tx, result in zip(txs, results, strict=True):
            records.say(who, "sent", decode(tx.raw)[1].nonce, tx.hash[:10], result.category.value)
        return results

    def _refused(self, txs: Sequence[SignedTx], fault: Fault) -> list[SendResult]:
        """A node that looked at the bytes and did not take them."""
        self._gate.records.struck(fault.kind, self._gate.process.name, fault.flavour)
        category = SendCategory(fault.flavour)
        if category is SendCategory.FATAL:
            hashes = self._gate.records.database.hashes
            self._gate.records.may_fail |= {
                hashes[self.chain_id, tx.hash] for tx in txs if (self.chain_id, tx.hash) in hashes
            }
        return [SendResult(category, "as planned") for _ in txs]


class TermChain:
    """The chain as one term of a lane uses it: a send is known by its token."""

    def __init__(self, chain: ChainPort, token: int) -> None:
        self._chain = chain
        self._token = token

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chain, name)

    async def send(self, txs: Sequence[SignedTx]) -> Sequence[SendResult]:
        return await self._chain.send(txs, token=self._token)


class KeysPort:
    """The `KeyPort` of one process."""

    def __init__(self, gate: Gate, keys: SimKeys) -> None:
        self._gate = gate
        self._keys = keys

    def addresses(self) -> Sequence[Address]:
        return self._keys.addresses()

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        return await self._gate.through(  # type: ignore[no-any-return]  # the gate passes it on
            "sign", lambda: self._keys.sign(address, txs), failure=partial(SigningError, "no answer")
        )

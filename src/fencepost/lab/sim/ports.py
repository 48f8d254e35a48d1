"""The ports as a simulated process has them: behind a gate, in whatever weather there is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import cycle
from typing import Any, Final
from uuid import UUID

from fencepost.application.ports import Header, KeyPort, LaneWrite, Written
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.domain.lease import Term
from fencepost.domain.managed import Receipt
from fencepost.domain.send import SendCategory, SendResult
from fencepost.domain.transaction import SignedTx, UnsignedTx
from fencepost.errors import RpcUnavailable, SigningError
from fencepost.lab.sim.chain import FakeChain
from fencepost.lab.sim.gate import Gate, SimClock
from fencepost.lab.sim.keys import SimKeys, decode
from fencepost.lab.sim.ledger import FakeLedger
from fencepost.lab.sim.plan import MIXED, TTL_S, Fault

# Of the calls to a node that fails now and then; half of those took effect.
FLAKY_CALLS: Final = 0.3

# Nobody waits longer than this for a connection of an exhausted pool.
MOST_WAIT_S: Final = TTL_S


class DatabaseGone(OSError):
    """The connection broke; whether the statement took effect is not known."""


# Some are refused, and one of them in a way that looks like a stranger.
_MIXTURE: Final = (SendCategory.UNDERPRICED, SendCategory.REPLACEMENT_UNDERPRICED)

_WRITES: Final = frozenset({"ask", "acquire", "renew", "release", "commit"})


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
        "newest_ended_blocks",
        "get",
        "find_by_request",
    )

    def __init__(self, gate: Gate, ledger: FakeLedger, clock: SimClock, incarnation: UUID) -> None:
        self.inner = ledger
        self._gate = gate
        self._clock = clock
        self._incarnation = incarnation
        self._timeline = ledger.database.timeline
        self.on_history_changed: Callable[[], None] = lambda: None
        for name in self._PLAIN:
            setattr(self, name, partial(self._plain, name))

    async def _plain(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return await self.call(name, lambda: getattr(self.inner, name)(*args, **kwargs))

    async def call(self, name: str, effect: Callable[[], Awaitable[Any]]) -> Any:
        """Through a connection that the database's end breaks; the next one is asked whose history it shows."""
        database = self.inner.database
        if self._timeline != database.timeline:
            self._timeline = database.timeline
            self.on_history_changed()
        session = database.session

        async def reached() -> Any:
            await self._wait_for_a_connection(name)
            if self._gate.weather_of("db_down"):
                raise DatabaseGone("the database does not answer")
            if database.session != session:
                raise DatabaseGone("the session was ended")
            if name in _WRITES and self._gate.weather_of("disk_full"):
                self._gate.records.struck("disk_full", self._gate.process.name, name)
                raise DatabaseGone("no space left on device")
            return await effect()

        return await self._gate.through(name, reached, failure=partial(DatabaseGone, "no answer"))

    async def _wait_for_a_connection(self, name: str) -> None:
        left_s = self._gate.weather.left_s("db_waits", self._gate.slot)
        if left_s > 0:
            self._gate.records.struck("db_waits", self._gate.process.name, name)
            await asyncio.sleep(min(left_s, MOST_WAIT_S))
            if left_s > MOST_WAIT_S:
                raise DatabaseGone("no connection in time")

    async def acquire(self, signers: Any) -> Sequence[Term]:
        began_s = self._clock.now_s()

        async def effect() -> Sequence[Term]:
            terms = await self.inner.acquire(signers)
            self._gate.records.acquired(self._incarnation, self._gate.process.name, terms)
            return [term.renewed(began_s) for term in terms]

        return await self.call("acquire", effect)  # type: ignore[no-any-return]  # the gate passes it on

    async def renew(self, terms: Sequence[Term]) -> Sequence[Term]:
        began_s = self._clock.now_s()

        async def effect() -> Sequence[Term]:
            standing = await self.inner.renew(terms)
            self._gate.records.renewed(self._incarnation, standing)
            return [term.renewed(began_s) for term in standing]

        return await self.call("renew", effect)  # type: ignore[no-any-return]  # the gate passes it on

    async def release(self, terms: Sequence[Term]) -> None:
        async def effect() -> None:
            await self.inner.release(terms)
            self._gate.records.released(terms)

        await self.call("release", effect)

    async def commit(self, write: LaneWrite) -> Written:
        self._gate.records.about_to_write(write, is_trusted=write.term.is_trusted(self._clock.now_s()))

        async def effect() -> Written:
            written = await self.inner.commit(write)
            self._gate.records.wrote(self._incarnation, write, written)
            return written

        return await self.call("commit", effect)  # type: ignore[no-any-return]  # the gate passes it on

    async def commit_each(self, writes: Sequence[LaneWrite]) -> Sequence[Written]:
        """One after the other: what comes between two of them may come between two statements."""
        return [await self.commit(write) for write in writes]


class ChainPort:
    """The `Chain` of one process."""

    _READS = (
        "balance_wei",
        "knows",
        "head",
        "block",
        "block_receipts",
        "estimate_gas",
        "quote_fees",
        "revert_reason",
    )
    _OF_BLOCKS = ("head", "block")

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
            if self._gate.weather_of("rpc_down"):
                raise RpcUnavailable("the node does not answer")
            if self._fails():
                raise RpcUnavailable("the node failed")
            return await getattr(self._node(name), name)(*args, **kwargs)

        return await self._gate.through(name, reached, failure=partial(RpcUnavailable, "no answer"))

    def _node(self, asked: str) -> FakeChain:
        """What the node that is asked has seen of the chain so far. Blocks may come from another one than the rest."""
        behind = self._gate.weather_of("endpoint_lags")
        if asked in self._OF_BLOCKS:
            behind = max(behind, self._gate.weather_of("blocks_lag"))
        return self.inner.behind(behind) if behind else self.inner

    def _fails(self) -> bool:
        if not self._gate.weather_of("rpc_flaky") or self._gate.rng.random() >= FLAKY_CALLS:
            return False
        self._gate.records.struck("rpc_flaky", self._gate.process.name)
        return True

    async def nonce(self, address: Address, tag: Any) -> int:
        found: int = await self._read("nonce", address, tag)
        by = self._gate.weather_of("nonce_lies")
        if by > 0 and Signer(self.chain_id, address) not in self._gate.records.database.cursors:
            return found  # where a sequence begins, whoever is asked is believed
        return max(0, found + by)

    async def receipts(self, hashes: Sequence[TxHash]) -> Sequence[Receipt | None]:
        found: Sequence[Receipt | None] = await self._read("receipts", hashes)
        if self._gate.weather_of("receipts_withheld") and any(found):
            self._gate.records.struck("receipts_withheld", self._gate.process.name)
            return [None] * len(hashes)
        return found

    async def receipts_and_head(self, hashes: Sequence[TxHash]) -> tuple[Sequence[Receipt | None], Header]:
        """A node answers the parts of one request at different moments, in any order."""
        if self._gate.rng.random() < 0.5:  # noqa: PLR2004 - one order or the other
            return await self.receipts(hashes), await self._read("head")
        head: Header = await self._read("head")
        return await self.receipts(hashes), head

    async def send(self, txs: Sequence[SignedTx], *, token: int = 0) -> Sequence[SendResult]:
        records, who = self._gate.records, self._gate.process.name
        records.about_to_send(who, token, [tx.raw for tx in txs])
        unknown = [SendResult(SendCategory.UNKNOWN, "no answer") for _ in txs]
        refusal = self._gate.counter.refusal()

        async def reached() -> Sequence[SendResult]:
            if self._gate.weather_of("rpc_down"):
                return unknown
            if refusal is not None:
                return await self._refused(txs, refusal)
            if self._fails():
                if self._gate.rng.random() < 0.5:  # noqa: PLR2004 - half of them had been executed
                    await self.inner.send(txs)
                return unknown
            node = self._node("send")
            said = await node.send(txs)
            if node is not self.inner:  # it answers by what it knows, and passes on what it got
                await self.inner.send(txs)
            return said

        try:
            results: Sequence[SendResult] = await self._gate.through(
                "send", reached, failure=partial(RpcUnavailable, "no answer")
            )
        except RpcUnavailable:
            results = unknown
        for tx, result in zip(txs, results, strict=True):
            records.say(who, "sent", decode(tx.raw)[1].nonce, tx.hash[:10], result.category.value)
        return results

    async def _refused(self, txs: Sequence[SignedTx], fault: Fault) -> list[SendResult]:
        """A node that looked at the bytes and did not take them; or took them, and says that it did not."""
        self._gate.records.struck(fault.kind, self._gate.process.name, fault.flavour)
        if fault.kind == "refused_but_taken":
            await self.inner.send(txs)
        if fault.flavour == MIXED:
            return [
                SendResult(category, "as planned") for category, _ in zip(cycle(_MIXTURE), txs, strict=False)
            ]
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


class KeysPort(KeyPort):
    """The `KeyPort` of one process."""

    def __init__(self, gate: Gate, keys: SimKeys) -> None:
        self._gate = gate
        self._keys = keys

    def addresses(self) -> Sequence[Address]:
        return self._keys.addresses()

    def signs_at_once(self, address: Address) -> bool:
        return self._keys.signs_at_once(address)

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        return await self._gate.through(  # type: ignore[no-any-return]  # the gate passes it on
            "sign", lambda: self._keys.sign(address, txs), failure=partial(SigningError, "no answer")
        )

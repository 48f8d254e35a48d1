"""The ports of one simulated process: each call passes its gate and meets the current conditions."""

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
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.transaction import SignedTx, UnsignedTx
from fencepost.domain.transaction_state import Receipt
from fencepost.errors import RpcRefused, RpcUnavailable, SigningError, WrongChain
from fencepost.testing import InMemoryChain, InMemoryLedger
from lab.sim.gate import Gate, SimClock
from lab.sim.keys import SimKeys, decode
from lab.sim.plan import MIXED, TTL_S, Fault

# The share of calls that fail at a flaky endpoint; half of the failed sends took effect.
FLAKY_CALLS: Final = 0.3

# The longest wait for a connection of an exhausted pool.
MAX_WAIT_S: Final = TTL_S


# The re-pointed endpoint is the only one.
_LONE: Final = 1


class DatabaseUnavailable(OSError):
    """The connection broke; the statement may or may not have taken effect."""


# Rejections of a batch; one of them looks like a foreign transaction.
_MIXTURE: Final = (SendCategory.UNDERPRICED, SendCategory.REPLACEMENT_UNDERPRICED)

LEDGER_WRITES: Final = frozenset({"add_command", "acquire", "renew", "release", "commit"})


class LedgerPort:
    """The `Ledger` of one process."""

    GATED = (
        "add_command",
        "load",
        "load_cursor",
        "load_queue",
        "load_unsent",
        "load_commands",
        "load_finished",
        "signers_with_work",
        "signers_finished_since",
        "newest_ended_blocks",
        "get",
        "find_by_request",
    )

    def __init__(self, gate: Gate, ledger: InMemoryLedger, clock: SimClock, incarnation: UUID) -> None:
        self.inner = ledger
        self._gate = gate
        self._clock = clock
        self._incarnation = incarnation
        self._timeline = ledger.database.timeline
        self.on_history_changed: Callable[[], None] = lambda: None
        for name in self.GATED:
            setattr(self, name, partial(self._plain, name))

    async def _plain(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return await self.call(name, lambda: getattr(self.inner, name)(*args, **kwargs))

    async def call(self, name: str, effect: Callable[[], Awaitable[Any]]) -> Any:
        """Call the ledger over a session that a restart breaks, and notice a changed timeline first."""
        database = self.inner.database
        if self._timeline != database.timeline:
            self._timeline = database.timeline
            self.on_history_changed()
        session = database.session

        async def reached() -> Any:
            await self._wait_for_a_connection(name)
            if self._gate.condition("db_down"):
                raise DatabaseUnavailable("the database does not answer")
            if database.session != session:
                raise DatabaseUnavailable("the session was ended")
            if name in LEDGER_WRITES and self._gate.condition("disk_full"):
                self._gate.recorder.count_fault("disk_full", self._gate.process.name, name)
                raise DatabaseUnavailable("no space left on device")
            return await effect()

        return await self._gate.through(name, reached, failure=partial(DatabaseUnavailable, "no answer"))

    async def _wait_for_a_connection(self, name: str) -> None:
        left_s = self._gate.conditions.left_s("db_waits", self._gate.slot)
        if left_s > 0:
            self._gate.recorder.count_fault("db_waits", self._gate.process.name, name)
            await asyncio.sleep(min(left_s, MAX_WAIT_S))
            if left_s > MAX_WAIT_S:
                raise DatabaseUnavailable("no connection in time")

    async def acquire(self, signers: Any) -> Sequence[Term]:
        began_s = self._clock.now_s()

        async def effect() -> Sequence[Term]:
            terms = await self.inner.acquire(signers)
            self._gate.recorder.acquired(self._incarnation, self._gate.process.name, terms)
            return [term.renewed(began_s) for term in terms]

        return await self.call("acquire", effect)  # type: ignore[no-any-return]  # the gate passes it on

    async def renew(self, terms: Sequence[Term]) -> Sequence[Term]:
        began_s = self._clock.now_s()

        async def effect() -> Sequence[Term]:
            standing = await self.inner.renew(terms)
            self._gate.recorder.renewed(self._incarnation, standing)
            return [term.renewed(began_s) for term in standing]

        return await self.call("renew", effect)  # type: ignore[no-any-return]  # the gate passes it on

    async def release(self, terms: Sequence[Term]) -> None:
        async def effect() -> None:
            await self.inner.release(terms)
            self._gate.recorder.released(terms)

        await self.call("release", effect)

    async def commit(self, write: LaneWrite) -> Written:
        self._gate.recorder.before_write(write, is_trusted=write.term.is_trusted(self._clock.now_s()))

        async def effect() -> Written:
            written = await self.inner.commit(write)
            self._gate.recorder.after_write(self._incarnation, write, written)
            if written.applied and self._gate.condition("repointed"):
                self._gate.recorder.check_not_undone(write)
            return written

        return await self.call("commit", effect)  # type: ignore[no-any-return]  # the gate passes it on

    async def commit_each(self, writes: Sequence[LaneWrite]) -> Sequence[Written]:
        """Commit one write after the other, so that other events can happen in between."""
        return [await self.commit(write) for write in writes]


class ChainPort:
    """The `Chain` of one process."""

    _READS = (
        "nonce_at",
        "transactions_of",
        "balance_wei",
        "knows",
        "head",
        "block",
        "block_receipts",
        "estimate_gas",
        "quote_fees",
        "revert_reason",
    )
    _OF_BLOCKS = ("head", "block", "transactions_of")

    def __init__(
        self, gate: Gate, chain: InMemoryChain, other_chain: Callable[[], InMemoryChain | None]
    ) -> None:
        self.inner = chain
        self._gate = gate
        self._other_chain = other_chain
        self._silent_since_s: float | None = None
        self._identified = (
            self._endpoints_wrong() > 0
        )  # the node has noticed that an endpoint serves another chain
        for name in self._READS:
            setattr(self, name, partial(self._read, name))

    @property
    def chain_id(self) -> int:
        return self.inner.chain_id

    @property
    def silent_for_s(self) -> float:
        since_s = self._silent_since_s
        return 0.0 if since_s is None else self._gate.loop.time() - since_s

    def _answered(self, *, is_answer: bool) -> None:
        if is_answer:
            self._silent_since_s = None
        elif self._silent_since_s is None:
            self._silent_since_s = self._gate.loop.time()

    def _endpoints_wrong(self) -> int:
        """Return 1 if the only endpoint serves another chain, 2 if one of two does, 0 if none does."""
        return self._gate.condition("repointed")

    async def check_identity(self) -> None:
        """Find out that an endpoint serves another chain; it is not used from then on, as in the adapter."""

        async def reached() -> None:
            if self._is_down():
                raise RpcUnavailable("the node does not answer")
            wrong = self._endpoints_wrong()
            if wrong and (wrong == _LONE or not self._identified):
                self._identified = True
                raise WrongChain("the endpoint serves another chain")

        await self._gate.through("check_identity", reached, failure=partial(RpcUnavailable, "no answer"))

    def _served(self, name: str) -> InMemoryChain:
        """Return the chain that answers: over a kept connection the other chain, until the node notices it."""
        wrong, other = self._endpoints_wrong(), self._other_chain()
        if not wrong or other is None:
            self._identified = False
        elif not self._identified:
            return other
        elif wrong == _LONE:
            raise WrongChain("the endpoint serves another chain")
        return self._node(name)

    async def _read(self, name: str, *args: Any, **kwargs: Any) -> Any:
        async def reached() -> Any:
            if self._is_down():
                raise RpcUnavailable("the node does not answer")
            if self._fails():
                raise RpcUnavailable("the node failed")
            self._refuse_for_good(name)
            return await getattr(self._served(name), name)(*args, **kwargs)

        is_answer = False
        try:
            answer = await self._gate.through(name, reached, failure=partial(RpcUnavailable, "no answer"))
            is_answer = True
        finally:
            self._answered(is_answer=is_answer)
        return answer

    def _node(self, asked: str) -> InMemoryChain:
        """Return the chain as the asked endpoint has seen it; blocks may come from another endpoint."""
        behind = self._gate.condition("endpoint_lags")
        if asked in self._OF_BLOCKS:
            behind = max(behind, self._gate.condition("blocks_lag"))
        return self.inner.behind(behind) if behind else self.inner

    def _is_down(self) -> bool:
        return bool(self._gate.condition("rpc_down") or self._gate.condition("rpc_dead"))

    def _refuse_for_good(self, name: str) -> None:
        answers = self._gate.conditions.refused_reads.get((name, self._gate.slot))
        if answers is not None:
            self._gate.recorder.count_fault("read_refused", self._gate.process.name, name)
            raise RpcRefused("this node does not answer that") if answers else RpcUnavailable("HTTP 403")

    def _fails(self) -> bool:
        if not self._gate.condition("rpc_flaky") or self._gate.rng.random() >= FLAKY_CALLS:
            return False
        self._gate.recorder.count_fault("rpc_flaky", self._gate.process.name)
        return True

    async def nonce(self, address: Address, tag: Any) -> int:
        found: int = await self._read("nonce", address, tag)
        by = self._gate.condition("wrong_nonce")
        if by > 0 and Signer(self.chain_id, address) not in self._gate.recorder.database.cursors:
            return found  # a new sequence trusts the endpoint
        return max(0, found + by)

    async def receipts(self, hashes: Sequence[TxHash]) -> Sequence[Receipt | None]:
        found: Sequence[Receipt | None] = await self._read("receipts", hashes)
        if self._gate.condition("receipts_withheld") and any(found):
            self._gate.recorder.count_fault("receipts_withheld", self._gate.process.name)
            return [None] * len(hashes)
        return found

    async def receipts_and_head(self, hashes: Sequence[TxHash]) -> tuple[Sequence[Receipt | None], Header]:
        """Return receipts and head in either order, as an endpoint answers the parts of one request."""
        if self._gate.rng.random() < 0.5:  # noqa: PLR2004 - one order or the other
            return await self.receipts(hashes), await self._read("head")
        head: Header = await self._read("head")
        return await self.receipts(hashes), head

    async def send(self, txs: Sequence[SignedTx], *, token: int = 0) -> Sequence[SendResult]:
        recorder, who = self._gate.recorder, self._gate.process.name
        recorder.before_send(who, token, [tx.raw for tx in txs])
        unknown = [SendResult(SendCategory.UNKNOWN, "no answer") for _ in txs]
        refusal = self._gate.counter.refusal()

        async def reached() -> Sequence[SendResult]:
            if self._is_down():
                return unknown
            if refusal is not None:
                return await self._refused(txs, refusal)
            if self._fails():
                if self._gate.rng.random() < 0.5:  # noqa: PLR2004 - half of them took effect
                    await self.inner.send(txs)
                return unknown
            if self._endpoints_wrong() and (self._endpoints_wrong() == _LONE or not self._identified):
                self._identified = True  # the other chain rejects them, and the adapter checks the identity
                return unknown
            node = self._node("send")
            said = await node.send(txs)
            if node is not self.inner:  # it answers by its own view, and forwards the bytes to the others
                await self.inner.send(txs)
            return said

        try:
            results: Sequence[SendResult] = await self._gate.through(
                "send", reached, failure=partial(RpcUnavailable, "no answer")
            )
        except RpcUnavailable:
            results = unknown
        for tx, result in zip(txs, results, strict=True):
            recorder.log(who, "sent", decode(tx.raw)[1].nonce, tx.hash[:10], result.category.value)
        return results

    async def _refused(self, txs: Sequence[SignedTx], fault: Fault) -> list[SendResult]:
        """Reject sends as planned; for `refused_but_taken`, accept the bytes all the same."""
        self._gate.recorder.count_fault(fault.kind, self._gate.process.name, fault.flavour)
        if fault.kind == "refused_but_taken":
            await self.inner.send(txs)
        if fault.flavour == MIXED:
            return [
                SendResult(category, "as planned") for category, _ in zip(cycle(_MIXTURE), txs, strict=False)
            ]
        category = SendCategory(fault.flavour)
        if category is SendCategory.FATAL:
            hashes = self._gate.recorder.database.hashes
            self._gate.recorder.may_fail |= {
                hashes[self.chain_id, tx.hash] for tx in txs if (self.chain_id, tx.hash) in hashes
            }
        return [SendResult(category, "as planned") for _ in txs]


class TermChain:
    """The chain as one term of a lane uses it: the recorder learns the token of each send."""

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

    def signs_locally(self, address: Address) -> bool:
        return self._keys.signs_locally(address)

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        return await self._gate.through(  # type: ignore[no-any-return]  # the gate passes it on
            "sign", lambda: self._keys.sign(address, txs), failure=partial(SigningError, "no answer")
        )

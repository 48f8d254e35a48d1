"""Run Fencepost inside your own process.

async with Fencepost.open(dsn=…, rpc_url=…, chain_id=…, private_keys=[…]) as fencepost:
    tx_id = await fencepost.create(signer=…, request_id="order-7", to=…, value_wei=1)
    tx = await fencepost.wait_for(tx_id, "finished")
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from fencepost import settings as settings_module
from fencepost.adapters.evm.encoding import parse_checked_address
from fencepost.application.accept import HANDLER_TTL_S, Request, RequestAcceptor
from fencepost.application.explain import Explanation
from fencepost.application.explain_facts import Explainer
from fencepost.application.hooks import Handler, StuckHook
from fencepost.application.ports import KeyPort, Ledger
from fencepost.application.tx_events import Subscriber, TxEvents
from fencepost.application.tx_waiter import Milestone, TxWaiter
from fencepost.application.uuid7 import new_tx_id
from fencepost.bootstrap.node import RunningNode, open_node
from fencepost.domain.fees import FeeTier
from fencepost.domain.ids import Address, Signer
from fencepost.domain.transaction import Call, Fees, TxType
from fencepost.domain.transaction_state import Intent, ManagedTx
from fencepost.errors import InvalidRequest, Unready
from fencepost.events.log import BEGINNING, parse_place
from fencepost.events.reader import EventFilter, EventReader
from fencepost.events.types import Event, EventType
from fencepost.runtime.node import Node


class NodeParts(Protocol):
    """The parts of a node that `Fencepost` uses; `fencepost.testing` has a node with the same parts in memory."""

    @property
    def node(self) -> Node:
        """Return the node."""
        ...

    @property
    def ledger(self) -> Ledger:
        """Return the node's ledger."""
        ...

    @property
    def default_chain_id(self) -> int:
        """Return the id of the default chain."""
        ...

    @property
    def keys(self) -> KeyPort:
        """Return the signers' keys."""
        ...

    @property
    def acceptor(self) -> RequestAcceptor:
        """Return what stores requests."""
        ...

    @property
    def tx_events(self) -> TxEvents:
        """Return where the lanes of the node publish what they committed."""
        ...

    @property
    def tx_waiter(self) -> TxWaiter:
        """Return what waits for transactions."""
        ...

    @property
    def handlers(self) -> dict[UUID, Handler]:
        """Return the handlers of this process by transaction."""
        ...

    @property
    def events(self) -> EventReader:
        """Return what reads events."""
        ...

    @property
    def explainer(self) -> Explainer | None:
        """Return what explains transactions; None in memory."""
        ...


@dataclass(frozen=True, slots=True)
class Fencepost:
    """Submit transactions to a node that runs in this process, and wait for them.

    Make one with `Fencepost.open`. Addresses are strings of 40 hex digits with 0x; a mixed-case address must have the
    right EIP-55 checksum. Methods that take a `chain_id` use the default chain without it. Bad arguments raise
    `InvalidRequest`.
    """

    running: RunningNode

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        *,
        dsn: str,
        rpc_url: str,
        chain_id: int | None = None,
        private_keys: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        stuck_hook: StuckHook | None = None,
    ) -> AsyncIterator[Fencepost]:
        """Open a node in this process, and close it when the block ends.

        `chain_id` names the chain that `rpc_url` must serve; it may also come from FENCEPOST_CHAIN_ID or the settings
        file. `options` are settings by their keys, as on the command line: `{"nonce.mode": "pipelined"}`. `stuck_hook`
        decides about a transaction that was resubmitted `resubmit.max_attempts` times; it replaces the setting
        `resubmit.stuck_hook`.
        """
        named = {} if chain_id is None else {"chain_id": str(chain_id)}
        loaded = settings_module.load(flags={"rpc_url": rpc_url, **named, **(options or {})})
        async with open_node(
            loaded.settings, dsn=dsn, more_private_keys=private_keys, stuck_hook=stuck_hook
        ) as running:
            yield cls(running)

    @property
    def _parts(self) -> NodeParts:
        return self.running

    @property
    def addresses(self) -> Sequence[Address]:
        """Return the addresses of the signers whose keys this node holds."""
        return self._parts.keys.addresses()

    async def create(
        self,
        *,
        signer: str,
        request_id: str | None = None,
        to: str | None = None,
        value_wei: int = 0,
        data: bytes = b"",
        gas: int | None = None,
        fees: Fees | None = None,
        tier: FeeTier | None = None,
        tx_type: TxType = TxType.DYNAMIC_FEE,
        chain_id: int | None = None,
    ) -> UUID:
        """Store a request, and return the id of its transaction.

        The request is stored when this returns; the transaction is signed and sent later. A repeated `request_id` with
        the same payload returns the same id, and raises `RequestConflict` with another payload. Without `gas` the
        endpoint estimates the gas limit; without `fees` it pays the suggested price of `tier`, or of the signer's tier.
        `to=None` deploys a contract.
        """
        call = Call(to=None if to is None else _address(to, "to"), value_wei=value_wei, data=data)
        intent = Intent(call=call, gas=gas, fees=fees, type=tx_type, tier=tier)
        request = Request(self.signer(signer, chain_id), intent, request_id)
        return (await self._parts.acceptor.create(request)).tx_id

    async def get(self, tx_id: UUID) -> ManagedTx | None:
        """Return the transaction, or None if there is none with this id."""
        return await self._parts.ledger.get(tx_id)

    async def by_request(
        self, signer: str, request_id: str, *, chain_id: int | None = None
    ) -> ManagedTx | None:
        """Return the transaction of a signer's request, or None if the request was never stored."""
        return await self._parts.ledger.find_by_request(self.signer(signer, chain_id), request_id)

    async def explain(self, tx_id: UUID) -> Explanation | None:
        """Explain why a transaction is not final: one cause, its evidence, and what to do. None: there is no such one."""
        return (await self._explainer().tx(tx_id))[1]

    async def explain_signer(self, address: str, *, chain_id: int | None = None) -> Explanation:
        """Explain why a signer does not send."""
        return await self._explainer().signer(self.signer(address, chain_id))

    def _explainer(self) -> Explainer:
        explainer = self._parts.explainer
        if explainer is None:
            raise Unready("explanations need PostgreSQL: a node in memory has none")
        return explainer

    async def wait_for(
        self, tx_id: UUID, state: str = "finished", *, timeout_s: float = 60.0
    ) -> ManagedTx | None:
        """Wait until the transaction has reached a milestone, and return it; at the time-out, return it as it is.

        The milestones are `allocated`, `submitted`, `mined` and `finished`, which means CONFIRMED, FAILED or CANCELLED.
        `confirmed` is another name of `finished`. Returns None if there is no such transaction. Raises `Stopping` if the
        node stops first.
        """
        try:
            milestone = Milestone[state.upper()]
        except KeyError:
            raise InvalidRequest(
                f"{state!r} is not a milestone: use allocated, submitted, mined, finished or confirmed",
                field="wait",
            ) from None
        return await self._parts.tx_waiter.wait_for(tx_id, milestone, timeout_s=timeout_s)

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call the subscriber after every commit of this node with the changed transactions, before and after.

        Returns a function that ends the subscription. The subscriber runs in the event loop and must return quickly. It
        gets neither the commits of other nodes nor those that the process could not publish before it died: to miss
        nothing, read the transactions as well.
        """
        return self._parts.tx_events.subscribe(subscriber)

    async def events(
        self,
        after: str = "",
        *,
        types: Sequence[str] | None = None,
        signers: Sequence[str] | None = None,
    ) -> AsyncIterator[Event]:
        """Yield events in the order of the log, and wait for new ones until the node stops.

        `after` is the id of the last event that was processed; without it, start with the oldest kept event. Store the id
        of an event after its work is done: after a crash, the events since then are yielded again. Raises `EventsExpired`
        if events after that id were removed.
        """
        place = parse_place(after) if after else BEGINNING
        if place is None:
            raise InvalidRequest(f"{after!r} is not the id of an event", field="after")
        addresses = None if signers is None else frozenset(_address(text, "signers") for text in signers)
        wanted = EventFilter(types=None if types is None else _types(types), addresses=addresses)
        async for event in self._parts.events.follow(place, wanted):
            yield event

    async def with_nonce(
        self, signer: str, handler: Handler, *, request_id: str | None = None, chain_id: int | None = None
    ) -> UUID:
        """Allocate a nonce and call the handler, which builds and signs the transaction for it.

        Fencepost sends the signed bytes and manages the nonce. If the handler fails after it received the nonce, or
        returns a transaction with another nonce, a filler consumes the nonce. A repeated `request_id` returns the
        transaction of the first call, and the handler is not called.
        """
        tx_id = new_tx_id()
        self._parts.handlers[tx_id] = handler
        try:
            accepted = await self._parts.acceptor.create_for_handler(
                self.signer(signer, chain_id), tx_id, self._parts.node.incarnation, request_id
            )
        except BaseException:
            self._parts.handlers.pop(tx_id, None)
            raise
        if accepted.tx_id != tx_id:
            self._parts.handlers.pop(tx_id, None)
            return accepted.tx_id
        # Another node may end the request. After this time no lane calls the handler any more.
        asyncio.get_running_loop().call_later(HANDLER_TTL_S, self._parts.handlers.pop, tx_id, None)
        return tx_id

    def signer(self, address: str, chain_id: int | None = None) -> Signer:
        """Return the signer with this address on a chain, the default chain unless `chain_id` names another."""
        return Signer(chain_id or self._parts.default_chain_id, _address(address, "signer"))


def _types(names: Sequence[str]) -> frozenset[EventType]:
    try:
        return frozenset(EventType(name) for name in names)
    except ValueError as error:
        raise InvalidRequest(str(error), field="types") from None


def _address(text: str, field: str) -> Address:
    try:
        return parse_checked_address(text)
    except ValueError as error:
        raise InvalidRequest(str(error), field=field) from None

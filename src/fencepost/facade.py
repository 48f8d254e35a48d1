"""Fencepost inside your own process.

async with Fencepost.open(dsn=…, rpc_url=…, private_keys=[…]) as fencepost:
tx_id = await fencepost.create(signer=…, request_id="order-7", to=…, value_wei=1)
tx = await fencepost.wait_for(tx_id, "confirmed")
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

from fencepost import settings as settings_module
from fencepost.adapters.evm.encoding import parse_checked_address
from fencepost.application.accept import Request
from fencepost.application.hooks import Handler
from fencepost.application.tx_ids import new_tx_id
from fencepost.application.waiting import Milestone
from fencepost.domain.ids import Address, Signer
from fencepost.domain.managed import Intent, ManagedTx
from fencepost.domain.transaction import Call, Fees, TxType
from fencepost.errors import InvalidRequest
from fencepost.wiring import Running, open_node


@dataclass(frozen=True, slots=True)
class Fencepost:
    """A node and its front: `create`, `get`, `by_request`, `wait_for`, `with_nonce`."""

    running: Running

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        *,
        dsn: str,
        rpc_url: str,
        private_keys: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Fencepost]:
        """`options` are settings by their keys, as on the command line: `{"nonce.mode": "pipelined"}`."""
        loaded = settings_module.load(flags={"rpc_url": rpc_url, **(options or {})})
        async with open_node(loaded.settings, dsn=dsn, more_private_keys=private_keys) as running:
            yield cls(running)

    @property
    def addresses(self) -> Sequence[Address]:
        """The signers whose keys are held here."""
        return self.running.keys.addresses()

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
        tx_type: TxType = TxType.DYNAMIC_FEE,
        chain_id: int | None = None,
    ) -> UUID:
        """The transaction's id; the same for the same request."""
        call = Call(to=None if to is None else _address(to, "to"), value_wei=value_wei, data=data)
        intent = Intent(call=call, gas=gas, fees=fees, type=tx_type)
        request = Request(self.signer(signer, chain_id), intent, request_id)
        return (await self.running.accept.create(request)).tx_id

    async def get(self, tx_id: UUID) -> ManagedTx | None:
        return await self.running.ledger.get(tx_id)

    async def by_request(
        self, signer: str, request_id: str, *, chain_id: int | None = None
    ) -> ManagedTx | None:
        return await self.running.ledger.find_by_request(self.signer(signer, chain_id), request_id)

    async def wait_for(
        self, tx_id: UUID, state: str = "confirmed", *, timeout_s: float = 60.0
    ) -> ManagedTx | None:
        """`allocated`, `submitted`, `mined` or `confirmed`; at the time-out, the transaction as it is."""
        try:
            milestone = Milestone[state.upper()]
        except KeyError:
            raise InvalidRequest(
                f"{state!r} is none of allocated, submitted, mined, confirmed", field="wait"
            ) from None
        return await self.running.waiting.wait_for(tx_id, milestone, timeout_s=timeout_s)

    async def with_nonce(self, signer: str, handler: Handler, *, chain_id: int | None = None) -> UUID:
        """The handler gets a nonce and builds the transaction for it; the life of the nonce is ours.

        If the handler fails after it saw the nonce, or gives a transaction with another one, a filler consumes it.
        """
        tx_id = new_tx_id()
        self.running.handlers[tx_id] = handler
        try:
            await self.running.accept.create_for_handler(
                self.signer(signer, chain_id), tx_id, self.running.node.incarnation
            )
        except BaseException:
            self.running.handlers.pop(tx_id, None)
            raise
        return tx_id

    def signer(self, address: str, chain_id: int | None = None) -> Signer:
        return Signer(chain_id or self.running.default_chain_id, _address(address, "signer"))


def _address(text: str, field: str) -> Address:
    try:
        return parse_checked_address(text)
    except ValueError as error:
        raise InvalidRequest(str(error), field=field) from None

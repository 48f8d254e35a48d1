"""Connect the HTTP API to a running node."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from importlib.metadata import version
from typing import Any

import msgspec

from fencepost.adapters.evm.abi import encode_call, encode_constructor, selector_of
from fencepost.adapters.evm.encoding import parse_checked_address
from fencepost.adapters.evm.recover_sender import sender_of
from fencepost.adapters.postgres.api_keys import PostgresKeyStore
from fencepost.adapters.postgres.commands import PostgresCommands
from fencepost.adapters.postgres.database import is_failure
from fencepost.adapters.postgres.nodes import list_nodes, node_address
from fencepost.adapters.postgres.query_reader import PostgresReader
from fencepost.api.dependencies import Dependencies, NodeInfo, SignerSettings
from fencepost.bootstrap.node import RunningNode
from fencepost.domain.ids import Address

MAX_CACHED_ADDRESSES = 10_000  # requests repeat a few addresses, and checking one computes a hash


def api_dependencies(running: RunningNode) -> Dependencies:
    """Return what the API needs of a running node."""
    settings, node = running.settings, running.node
    info = NodeInfo(
        name=node.name,
        incarnation=node.incarnation,
        version=version("fencepost"),
        started_at=datetime.now(UTC),
    )

    def signer_settings(address: Address) -> SignerSettings:
        signer = settings.signer_settings(address)
        return SignerSettings(mode=signer.mode, max_in_flight=signer.max_in_flight)

    async def call_endpoint(
        chain_id: int, method: str, params: Sequence[Any], *, bytes_max: int
    ) -> msgspec.Raw:
        return await running.chains[chain_id].passthrough(method, params, bytes_max=bytes_max)

    async def url_of(name: str) -> str | None:
        place = await node_address(running.pool, name)
        return None if place is None else place[0]

    return Dependencies(
        url_of=url_of,
        acceptor=running.acceptor,
        tx_waiter=running.tx_waiter,
        reader=PostgresReader(running.pool),
        events_log=running.events,
        nodes=partial(list_nodes, running.pool),
        commands=PostgresCommands(running.pool, node=node.name),
        keys=PostgresKeyStore(running.pool, node=node.name),
        spending=running.spending,
        node=info,
        chains=running.chains,
        default_chain_id=running.default_chain_id,
        addresses=running.keys.addresses,
        holds=lambda signer: signer in node.lanes,
        signer_settings=signer_settings,
        parse_address=lru_cache(maxsize=MAX_CACHED_ADDRESSES)(parse_checked_address),
        encode_call=encode_call,
        encode_constructor=encode_constructor,
        selector_of=selector_of,
        call_endpoint=call_endpoint,
        sender_of=sender_of,
        is_database_failure=is_failure,
        host=settings.api.host,
        auth=settings.api.auth,
        max_waits_per_key=settings.api.max_waits_per_key,
        expose_nonce=settings.api.expose_nonce,
        events=settings.events.mode,
        accepting_nodes=settings.api.intake,
        lease_duration_s=settings.lease.duration_s,
        required_confirmations=settings.confirmations.required,
        metrics=running.observer.metrics.render,
        nonces=running.nonces,
        forward_tokens=running.forward_tokens,
        forward=running.forward,
        fee_sources=running.fees,
    )

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
from fencepost.api.dependencies import (
    ApiSettings,
    Chains,
    Cluster,
    Codec,
    Dependencies,
    NodeInfo,
    Signers,
    SignerSettings,
    WebhookSettings,
)
from fencepost.bootstrap.node import RunningNode
from fencepost.domain.ids import Address
from fencepost.settings import Settings

MAX_CACHED_ADDRESSES = 10_000  # requests repeat a few addresses, and checking one computes a hash


def api_dependencies(running: RunningNode) -> Dependencies:
    """Return what the API needs of a running node."""
    pool, name = running.pool, running.node.name
    return Dependencies(
        acceptor=running.acceptor,
        tx_waiter=running.tx_waiter,
        reader=PostgresReader(pool),
        events_log=running.events,
        subscriptions=running.subscriptions,
        explainer=running.explainer,
        commands=PostgresCommands(pool, node=name),
        keys=PostgresKeyStore(pool, node=name),
        spending=running.spending,
        node=NodeInfo(
            name=name,
            incarnation=running.node.incarnation,
            version=version("fencepost"),
            started_at=datetime.now(UTC),
            is_database_failure=is_failure,
            metrics=running.observer.metrics.render,
        ),
        signers=_signers(running),
        chains=_chains(running),
        codec=Codec(
            parse_address=lru_cache(maxsize=MAX_CACHED_ADDRESSES)(parse_checked_address),
            encode_call=encode_call,
            encode_constructor=encode_constructor,
            selector_of=selector_of,
            sender_of=sender_of,
        ),
        cluster=_cluster(running),
        settings=_api_settings(running.settings),
        webhooks=_webhooks(running),
        nonces=running.nonces,
    )


def _webhooks(running: RunningNode) -> WebhookSettings:
    events = running.settings.events
    return WebhookSettings(
        max_per_key=events.max_subscriptions_per_key,
        allow_private=events.webhook.allow_private,
        secret_overlap_s=events.webhook.secret_overlap_s,
        send=running.webhook_sender,
    )


def _signers(running: RunningNode) -> Signers:
    def settings_of(address: Address) -> SignerSettings:
        signer = running.settings.signer_settings(address)
        return SignerSettings(mode=signer.mode, max_in_flight=signer.max_in_flight)

    return Signers(
        addresses=running.keys.addresses,
        holds=lambda signer: signer in running.node.lanes,
        settings=settings_of,
    )


def _chains(running: RunningNode) -> Chains:
    async def call_endpoint(
        chain_id: int, method: str, params: Sequence[Any], *, bytes_max: int
    ) -> msgspec.Raw:
        return await running.chains[chain_id].passthrough(method, params, bytes_max=bytes_max)

    return Chains(
        by_id=running.chains,
        default_id=running.default_chain_id,
        call_endpoint=call_endpoint,
        fee_sources=running.fees,
    )


def _cluster(running: RunningNode) -> Cluster:
    async def url_of(name: str) -> str | None:
        place = await node_address(running.pool, name)
        return None if place is None else place[0]

    return Cluster(
        nodes=partial(list_nodes, running.pool),
        url_of=url_of,
        forward_tokens=running.forward_tokens,
        forward=running.forward,
    )


def _api_settings(settings: Settings) -> ApiSettings:
    return ApiSettings(
        host=settings.api.host,
        auth=settings.api.auth,
        max_waits_per_key=settings.api.max_waits_per_key,
        max_streams_per_key=settings.api.max_streams_per_key,
        expose_nonce=settings.api.expose_nonce,
        events=settings.events.mode,
        accepting_nodes=settings.api.intake,
        lease_duration_s=settings.lease.duration_s,
        required_confirmations=settings.confirmations.required,
        ready_needs_chain=settings.api.ready_needs_chain,
    )

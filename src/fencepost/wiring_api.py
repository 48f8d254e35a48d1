"""From a running node to the services of the front door."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from importlib.metadata import version
from typing import Any

from fencepost.adapters.evm.encoding import parse_checked_address
from fencepost.adapters.evm.raw_sender import sender_of
from fencepost.adapters.postgres.database import is_failure
from fencepost.adapters.postgres.nodes import list_nodes
from fencepost.adapters.postgres.operators import PostgresKeyStore, PostgresOperate
from fencepost.adapters.postgres.policies import PostgresPolicies
from fencepost.adapters.postgres.reader import PostgresReader
from fencepost.api.services import NodeInfo, Services, SignerRules
from fencepost.application.policy import PolicyGuard
from fencepost.domain.ids import Address
from fencepost.wiring import Running

ADDRESSES_REMEMBERED = 10_000  # the same few come again and again, and reading one takes a hash


def _encode_call(*, method: str, abi: Sequence[Any] | None, args: Sequence[Any]) -> bytes:
    from fencepost.adapters.evm.abi import (
        encode_call,  # its library takes a second to import, and few need it
    )

    return encode_call(method=method, abi=abi, args=args)


def _encode_constructor(*, abi: Sequence[Any], args: Sequence[Any]) -> bytes:
    from fencepost.adapters.evm.abi import encode_constructor  # see above

    return encode_constructor(abi=abi, args=args)


def _selector_of(signature: str) -> bytes | None:
    from fencepost.adapters.evm.abi import selector_of  # see above

    return selector_of(signature)


def services_of(running: Running) -> Services:
    settings, node = running.settings, running.node
    info = NodeInfo(
        name=node.name,
        incarnation=node.incarnation,
        version=version("fencepost"),
        started_at=datetime.now(UTC),
    )

    def rules_of(address: Address) -> SignerRules:
        policy = settings.signer_policy(address)
        return SignerRules(mode=policy.mode, max_in_flight=policy.max_in_flight)

    async def pass_on(chain_id: int, method: str, params: Sequence[Any]) -> Any:
        return await running.chains[chain_id].passthrough(method, params)

    return Services(
        accept=running.accept,
        waiting=running.waiting,
        reader=PostgresReader(running.pool),
        nodes=partial(list_nodes, running.pool),
        operate=PostgresOperate(running.pool, node=node.name),
        keys=PostgresKeyStore(running.pool, node=node.name),
        policy=PolicyGuard(PostgresPolicies(running.pool, node=node.name), running.ledger),
        node=info,
        chains=running.chains,
        default_chain_id=running.default_chain_id,
        addresses=running.keys.addresses,
        holds=lambda signer: signer in node.lanes,
        rules_of=rules_of,
        parse_address=lru_cache(maxsize=ADDRESSES_REMEMBERED)(parse_checked_address),
        encode_call=_encode_call,
        encode_constructor=_encode_constructor,
        selector_of=_selector_of,
        pass_on=pass_on,
        sender_of=sender_of,
        is_database_failure=is_failure,
        host=settings.api.host,
        expose_nonce=settings.api.expose_nonce,
        events=settings.events.mode,
        intake=settings.api.intake,
        lease_duration_s=settings.lease.duration_s,
        required_confirmations=settings.confirmations.required,
        metrics=running.observer.metrics.render,
        nonces=running.nonces,
        passes=running.passes,
        forward=running.forward,
    )

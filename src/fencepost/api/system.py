"""Report on this node and its cluster: health, readiness, version, nodes."""

from __future__ import annotations

import asyncio

from fencepost.api.context import RequestContext, Response
from fencepost.api.presenters import node_out
from fencepost.api.problems import ApiError
from fencepost.api.transactions import SILENT_AFTER_S
from fencepost.domain.fees import within
from fencepost.domain.transaction import Fees
from fencepost.schemas.responses import (
    ChainFeesOut,
    NodesOut,
    ReadyOut,
    StatusOut,
    TierFeesOut,
    VersionOut,
)

READY_TIMEOUT_S = 2.0
FEES_TIMEOUT_S = 10.0
MAX_CHAIN_ID_DIGITS = 19


async def alive(_call: RequestContext) -> Response:
    return Response(StatusOut(status="ok"))


async def ready(call: RequestContext) -> Response:
    """Check that the node accepts requests: the database responds and is writable.

    A silent chain is named. It makes the node unready only if `api.ready_needs_chain` is on: by default requests for it
    are stored and wait until it responds.
    """
    async with asyncio.timeout(READY_TIMEOUT_S):
        writable = await call.services.reader.ping()
    if not writable:
        raise ApiError(
            "database_unavailable",
            "the database is read-only: neither intake nor sending works",
            retry_after_s=1,
        )
    services = call.services
    silent = sorted(
        chain_id for chain_id, chain in services.chains.by_id.items() if chain.silent_for_s >= SILENT_AFTER_S
    )
    if silent and services.settings.ready_needs_chain:
        chains = ", ".join(map(str, silent))
        raise ApiError(
            "chain_unavailable",
            f"intake works, sending does not: no endpoint of chain {chains} answers",
            retry_after_s=1,
        )
    return Response(
        ReadyOut(
            status="ready",
            database=True,
            node=services.node.name,
            silent_chain_ids=silent,
            intake=True,
            sending=not silent,
        )
    )


async def version(call: RequestContext) -> Response:
    services = call.services
    return Response(
        VersionOut(
            version=services.node.version,
            node=services.node.name,
            chain_ids=sorted(services.chains.by_id),
            default_chain_id=services.chains.default_id,
            events=services.settings.events,
        )
    )


async def chain_fees(call: RequestContext) -> Response:
    """Report what each tier pays now on a chain."""
    text = call.path_text("chain_id")
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_CHAIN_ID_DIGITS):
        raise ApiError("chain_unknown", "chain_id: must be a whole number")
    chain_id = call.chain_id(int(text))
    sources = call.services.chains.fee_sources[chain_id]
    try:
        async with asyncio.timeout(FEES_TIMEOUT_S):
            quoted = await sources.offered()
    except TimeoutError as error:
        raise ApiError(
            "chain_unavailable", f"no fee source answered within {FEES_TIMEOUT_S:g} s", retry_after_s=1
        ) from error

    def tier(fees: Fees) -> TierFeesOut:
        limited = within(fees, Fees(fee_cap_wei=sources.cap_wei, tip_wei=sources.cap_wei))
        return TierFeesOut(
            max_fee_per_gas=str(limited.fee_cap_wei), max_priority_fee_per_gas=str(limited.tip_wei)
        )

    return Response(
        ChainFeesOut(
            chain_id=chain_id,
            configured=sources.configured,
            source=quoted.source,
            cap=str(sources.cap_wei),
            slow=tier(quoted.slow),
            normal=tier(quoted.normal),
            fast=tier(quoted.fast),
            urgent=tier(quoted.urgent),
        )
    )


async def nodes(call: RequestContext) -> Response:
    """List the known nodes, live ones first."""
    this = call.services.node.incarnation
    found = await call.services.cluster.nodes()
    return Response(NodesOut(items=[node_out(view, is_this=view.incarnation == this) for view in found]))

"""Report on this node and its cluster: health, readiness, version, nodes."""

from __future__ import annotations

import asyncio

from fencepost.api.context import RequestContext, Response
from fencepost.api.presenters import node_out
from fencepost.api.problems import ApiError
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
# A chain is reported as silent when none of its endpoints has answered for this long.
SILENT_AFTER_S = 5.0
MAX_CHAIN_ID_DIGITS = 19


async def alive(_call: RequestContext) -> Response:
    return Response(StatusOut(status="ok"))


async def ready(call: RequestContext) -> Response:
    """Check that the node accepts requests: the database responds and is writable.

    A silent chain is named and changes nothing else: requests for it are stored and wait until it responds.
    """
    async with asyncio.timeout(READY_TIMEOUT_S):
        writable = await call.services.reader.ping()
    if not writable:
        raise ApiError("database_unavailable", "the database is read-only", retry_after_s=1)
    services = call.services
    silent = sorted(
        chain_id for chain_id, chain in services.chains.items() if chain.silent_for_s >= SILENT_AFTER_S
    )
    return Response(ReadyOut(status="ready", database=True, node=services.node.name, silent_chain_ids=silent))


async def version(call: RequestContext) -> Response:
    services = call.services
    return Response(
        VersionOut(
            version=services.node.version,
            node=services.node.name,
            chain_ids=sorted(services.chains),
            default_chain_id=services.default_chain_id,
            events=services.events,
        )
    )


async def chain_fees(call: RequestContext) -> Response:
    """Report what each tier pays now on a chain."""
    text = call.path_text("chain_id")
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_CHAIN_ID_DIGITS):
        raise ApiError("chain_unknown", "chain_id: must be a whole number")
    chain_id = call.chain_id(int(text))
    sources = call.services.fee_sources[chain_id]
    async with asyncio.timeout(READY_TIMEOUT_S):
        quoted = await sources.offered()

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
    found = await call.services.nodes()
    return Response(NodesOut(items=[node_out(view, is_this=view.incarnation == this) for view in found]))

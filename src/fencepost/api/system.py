"""The node about itself and its fellows: alive, ready, version, who holds what."""

from __future__ import annotations

import asyncio

from fencepost.api.calls import Call, Reply
from fencepost.api.convert import node_out
from fencepost.api.problems import ApiError
from fencepost.api.wire_out import NodesOut, ReadyOut, StatusOut, VersionOut

READY_WITHIN_S = 2.0


async def alive(_call: Call) -> Reply:
    return Reply(StatusOut(status="ok"))


async def ready(call: Call) -> Reply:
    """Whether requests would be taken: the database answers, and may be written to."""
    async with asyncio.timeout(READY_WITHIN_S):
        writable = await call.services.reader.ping()
    if not writable:
        raise ApiError("database_unavailable", "the database is read-only", retry_after_s=1)
    return Reply(ReadyOut(status="ready", database=True, node=call.services.node.name))


async def version(call: Call) -> Reply:
    services = call.services
    return Reply(
        VersionOut(
            version=services.node.version,
            node=services.node.name,
            chain_ids=sorted(services.chains),
            default_chain_id=services.default_chain_id,
            events=services.events,
        )
    )


async def nodes(call: Call) -> Reply:
    """Every node that is known, those alive first."""
    this = call.services.node.incarnation
    found = await call.services.nodes()
    return Reply(NodesOut(items=[node_out(view, is_this=view.incarnation == this) for view in found]))

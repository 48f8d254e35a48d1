"""Explain transactions and signers, and report the status of the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from fencepost.api.context import RequestContext, Response
from fencepost.api.presenters import node_out
from fencepost.api.problems import ApiError
from fencepost.api.signers import existing
from fencepost.application.explain import ChainFacts, Explanation
from fencepost.application.explain_facts import ChainStatus, Status
from fencepost.application.ports import EndpointReport
from fencepost.domain.ids import Signer
from fencepost.schemas.explanations import (
    ActionProposalOut,
    BlockedByOut,
    ChainStatusOut,
    ClusterStatusOut,
    EndpointStatusOut,
    EvidenceOut,
    ExplanationOut,
    SignerStatusOut,
)


async def tx(call: RequestContext) -> Response:
    """Explain a transaction. A database that does not answer is the explanation, not an error."""
    view, found = await call.services.explainer.tx(call.tx_id())
    if found is None or (view is not None and not call.caller.may_use(view.signer.address)):
        raise ApiError("tx_not_found", "no transaction was found")
    return Response(explanation_out(found, shows_nonce=call.shows_nonce))


async def signer(call: RequestContext) -> Response:
    view = await existing(call)
    found = await call.services.explainer.signer(view.signer)
    return Response(explanation_out(found, shows_nonce=call.shows_nonce))


async def status(call: RequestContext) -> Response:
    """Report what is wrong anywhere. The caller sees only signers that it may use."""
    services = call.services
    known = [
        Signer(chain_id, address)
        for chain_id in services.chains.by_id
        for address in services.signers.addresses()
    ]
    found = await services.explainer.status(known, call.caller.addresses)
    return Response(_status_out(call, found))


def explanation_out(found: Explanation, *, shows_nonce: bool) -> ExplanationOut:
    if not shows_nonce:
        found = found.without_nonces()
    blocked_by = found.blocked_by
    return ExplanationOut(
        cause=found.cause,
        summary=found.summary,
        evidence=[EvidenceOut(text=one.text, source=one.source, at=one.at) for one in found.evidence],
        actions=[
            ActionProposalOut(command=one.command, consequence=one.consequence) for one in found.actions
        ],
        since=found.since,
        blocked_by=None
        if blocked_by is None
        else BlockedByOut(tx_id=str(blocked_by.tx_id), cause=blocked_by.cause, summary=blocked_by.summary),
        expected=found.expected,
    )


def _status_out(call: RequestContext, found: Status) -> ClusterStatusOut:
    services = call.services
    signers = [
        SignerStatusOut(
            chain_id=one.view.signer.chain_id,
            address=one.view.signer.address,
            state=one.view.state,
            in_flight=one.view.in_flight,
            queued=one.view.queued,
            explanation=explanation_out(one.explanation, shows_nonce=call.shows_nonce),
        )
        for one in found.signers
    ]
    problems = [*_problems(found)]
    problems += [one.explanation.summary for one in signers[: len(found.problems)]]
    return ClusterStatusOut(
        ok=not problems,
        at=found.at,
        node=services.node.name,
        database_error=found.database_error,
        problems=problems,
        chains=[_chain_out(one) for one in found.chains],
        nodes=[node_out(view, is_this=view.incarnation == services.node.incarnation) for view in found.nodes],
        signers=signers,
        more_signers=found.more_signers,
    )


def _problems(found: Status) -> Iterator[str]:
    """Say what is wrong with the database, the endpoints and the nodes."""
    if found.database_error is not None:
        yield f"Database: {found.database_error}"
    for chain in found.chains:
        for report in chain.reports:
            if report.trouble is not None:
                yield f"Chain {chain.chain_id}, endpoint {report.endpoint}: {report.error or report.trouble}"
    for node in found.nodes:
        if not node.is_live:
            yield f"Node {node.name} sends no heartbeat since {node.heartbeat_at.astimezone(UTC):%H:%M:%S UTC}."


def _chain_out(chain: ChainStatus) -> ChainStatusOut:
    head = ChainFacts(chain.chain_id, tuple(chain.reports)).head
    return ChainStatusOut(
        chain_id=chain.chain_id,
        head=None if head is None else head.number,
        head_still_for_s=None if chain.head_still_for_s is None else round(chain.head_still_for_s, 1),
        silent_for_s=round(chain.silent_for_s, 1),
        endpoints=[_endpoint_out(report, None if head is None else head.number) for report in chain.reports],
    )


def _endpoint_out(report: EndpointReport, highest: int | None) -> EndpointStatusOut:
    head = report.head
    return EndpointStatusOut(
        endpoint=report.endpoint,
        up=report.trouble is None,
        trouble=None if report.trouble is None else report.trouble.value,
        error=report.error or None,
        head=None if head is None else head.number,
        head_time=None if head is None else datetime.fromtimestamp(head.timestamp_s, UTC),
        lag=None if head is None or highest is None else highest - head.number,
    )

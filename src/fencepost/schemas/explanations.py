"""Define the response types of explanations and of the status of the cluster."""

from __future__ import annotations

from datetime import datetime

import msgspec

from fencepost.application.explain import Cause
from fencepost.schemas.responses import NodeOut


class _Out(msgspec.Struct, rename="camel", kw_only=True):
    pass


class EvidenceOut(_Out):
    """One observation: what was seen, from which endpoint or node, and when."""

    text: str
    source: str
    at: datetime | None


class ActionProposalOut(_Out):
    """A command that can be pasted, and what it causes."""

    command: str
    consequence: str


class BlockedByOut(_Out):
    """The transaction at the head of the lane, and why that one waits."""

    tx_id: str
    cause: Cause
    summary: str


class ExplanationOut(_Out):
    """Why a transaction is not final, or why a signer does not send. `cause` is a stable code: docs/explain.md."""

    cause: Cause
    summary: str
    evidence: list[EvidenceOut]
    actions: list[ActionProposalOut]
    since: datetime | None
    blocked_by: BlockedByOut | None
    expected: str  # what takes place without any action


class EndpointStatusOut(_Out):
    """One endpoint. Without an answer, `trouble` says what kind and `error` has the text."""

    endpoint: str
    up: bool
    trouble: str | None
    error: str | None
    head: int | None
    head_time: datetime | None
    lag: int | None  # blocks behind the highest head of all endpoints


class ChainStatusOut(_Out):
    chain_id: int
    head: int | None
    head_still_for_s: float | None  # for how long this node has seen no new block
    silent_for_s: float  # for how long no endpoint has answered this node
    endpoints: list[EndpointStatusOut]


class SignerStatusOut(_Out):
    chain_id: int
    address: str
    state: str
    in_flight: int
    queued: int
    explanation: ExplanationOut


class ClusterStatusOut(_Out):
    """What is wrong anywhere, as this node sees it. `ok` is true if nothing needs an operator."""

    ok: bool
    at: datetime
    node: str
    database_error: str | None
    problems: list[str]  # one sentence each
    chains: list[ChainStatusOut]
    nodes: list[NodeOut]
    signers: list[SignerStatusOut]  # those with work or a problem, problems first
    more_signers: int  # signers with work that are not listed

"""Define the response types.

Amounts in wei are decimal text, because JSON numbers lose digits. Times are RFC 3339. Hex is lower-case.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from fencepost.domain.states import State
from fencepost.schemas.problem import Problem


class _Out(msgspec.Struct, rename="camel", kw_only=True):
    pass


class AttemptOut(_Out):
    number: int
    purpose: str
    type: int
    hash: str
    gas: int
    max_fee_per_gas: str
    max_priority_fee_per_gas: str
    fee_source: str | None
    sent_count: int
    last_result: str | None
    last_message: str | None
    created_at: datetime


class TierFeesOut(_Out):
    max_fee_per_gas: str
    max_priority_fee_per_gas: str


class ChainFeesOut(_Out):
    """What a request without a price pays now on a chain, by tier, in wei per gas.

    `configured` is the setting `fees.source`; `source` is the one that answered: node, gas_station, cache, legacy or fixed.
    No signature pays more than `cap`.
    """

    chain_id: int
    configured: str
    source: str
    cap: str
    slow: TierFeesOut
    normal: TierFeesOut
    fast: TierFeesOut
    urgent: TierFeesOut


class BlockOut(_Out):
    number: int
    hash: str


class ConfirmationsOut(_Out):
    count: int
    required: int | str
    blocks: list[BlockOut]  # the complete list: after a fork it replaces every list returned before
    new_fork: bool | UnsetType = UNSET  # a fork has replaced blocks since the transaction was first mined
    forked_at: datetime | UnsetType = UNSET  # the time of the last fork
    replaced: list[BlockOut] | UnsetType = UNSET  # the blocks that the last fork removed


class ActionOut(_Out):
    action: str
    count: int
    first_occurrence: datetime
    last_occurrence: datetime
    last_info: str | UnsetType = UNSET
    last_error: str | UnsetType = UNSET
    last_error_time: datetime | UnsetType = UNSET


class HistoryOut(_Out):
    """A period with one sub-status, and the actions within it."""

    sub_status: str
    time: datetime
    actions: list[ActionOut]


class HistorySummaryOut(_Out):
    count: int
    first_occurrence: datetime
    last_occurrence: datetime
    sub_status: str | UnsetType = UNSET
    action: str | UnsetType = UNSET


class TxOut(_Out):
    """A transaction. The response to a submission that did not wait has no times."""

    tx_id: str
    request_id: str | None
    chain_id: int
    signer: str
    state: State
    sub_state: str | None = None
    reason: str | UnsetType = UNSET  # why a live transaction waits
    hash: str | None = None
    nonce: int | UnsetType | None = UNSET
    error: str | None = None
    block_number: int | None = None
    block_hash: str | None = None
    confirmation_count: int = 0
    submit_count: int = 0
    tags: list[str] = []
    valid_until: datetime | UnsetType | None = UNSET
    created_at: datetime | UnsetType = UNSET
    updated_at: datetime | UnsetType = UNSET
    finished_at: datetime | UnsetType | None = UNSET
    payload: dict[str, Any] | UnsetType = UNSET
    attempts: list[AttemptOut] | UnsetType = UNSET
    receipt: dict[str, Any] | UnsetType | None = UNSET
    confirmations: ConfirmationsOut | UnsetType = UNSET
    history: list[HistoryOut] | UnsetType = UNSET
    history_summary: list[HistorySummaryOut] | UnsetType = UNSET


class BatchResult(_Out):
    """The result of one request of a batch. `status` is the HTTP status of the same request sent alone."""

    status: int
    tx: TxOut | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class BatchOut(_Out):
    results: list[BatchResult]


class TxPage(_Out):
    items: list[TxOut]
    next: str | None  # None: this is the last page


class CompletionOut(_Out):
    cursor: str
    time: datetime
    tx_id: str
    request_id: str | None
    chain_id: int
    signer: str
    state: State
    state_now: State  # differs from `state` if a reorg has reopened the transaction
    hash: str | None
    block_number: int | None
    error: str | None
    nonce: int | UnsetType | None = UNSET


class CompletionsOut(_Out):
    items: list[CompletionOut]
    next: str


class LeaseOut(_Out):
    owner: str
    token: int
    held: bool
    acquired_at: datetime
    held_until: datetime | None


class ChainNonces(_Out):
    latest: int
    pending: int


class SignerOut(_Out):
    chain_id: int
    address: str
    state: str
    reason: str | None
    paused: bool  # also true under PROTECT: the pause remains after unprotect
    mode: str
    max_in_flight: int
    has_key: bool  # this node can sign for the signer
    in_flight: int
    queued: int
    suspended: int
    lease: LeaseOut | None
    next_nonce: int | UnsetType | None = UNSET
    start_nonce: int | UnsetType | None = UNSET
    balance_wei: str | UnsetType | None = UNSET
    chain_nonces: ChainNonces | UnsetType | None = UNSET
    chain_error: str | UnsetType = UNSET


class SignersPage(_Out):
    items: list[SignerOut]
    next: str | None


class PolicyOut(_Out):
    """The spending policy of a signer. A null field sets no limit."""

    receivers: list[str] | None
    selectors: list[str] | None
    value_wei_max: str | None
    daily_wei_max: str | None
    gas_max: str | None
    fee_cap_max: str | None
    spent_today_wei: str


class CommandOut(_Out):
    """An operator command and its outcome.

    If not `done`, the lane has not run it yet: poll `Location`. If `done` but not `applied`, it changed nothing, and
    `outcome` says why.
    """

    command_id: str
    command: str
    done: bool
    applied: bool | None
    outcome: str | None
    asked_by: str
    reason: str | None
    asked_at: datetime
    done_at: datetime | None
    tx: TxOut | UnsetType = UNSET
    signer: SignerOut | UnsetType = UNSET
    drained: bool | UnsetType = UNSET
    withdrawn: bool | UnsetType = UNSET  # only in the response to a withdrawal


class NodeOut(_Out):
    name: str
    incarnation: str
    url: str | None
    mode: str
    version: str
    started_at: datetime
    heartbeat_at: datetime
    is_live: bool
    signers: int
    is_this: bool


class NodesOut(_Out):
    items: list[NodeOut]


class StatusOut(_Out):
    status: str


class ReadyOut(_Out):
    """Readiness. `intake`: requests are stored. `sending`: an endpoint of every chain answers, so they are sent, too.

    `silentChainIds` has the chains without an endpoint that answers: requests for them are accepted and wait.
    """

    status: str
    database: bool
    node: str
    silent_chain_ids: list[int]
    intake: bool
    sending: bool


class VersionOut(_Out):
    version: str
    node: str
    chain_ids: list[int]
    default_chain_id: int
    events: str  # how callers learn of finished transactions: by polling /completions


class NonceOut(_Out):
    nonce: int
    token: str


class NoncesOut(_Out):
    signer: str
    chain_id: int
    items: list[NonceOut]


class NonceStatusOut(_Out):
    """Counts of a signer's nonces. `expired` counts held nonces whose hold is over; `firstGap` is allocated next."""

    signer: str
    chain_id: int
    start_nonce: int
    next_nonce: int
    held: int
    expired: int
    submitted: int
    consumed: int
    released: int
    first_gap: int | None

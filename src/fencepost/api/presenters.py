"""Convert views of the database to response types. The callers decide what an API key may see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from fencepost.application.explain import without_nonces
from fencepost.application.membership import NodeView
from fencepost.application.queries import (
    AttemptView,
    CommandView,
    Completion,
    CompletionCursor,
    Part,
    SignerView,
    TxView,
)
from fencepost.application.tx_history import Action, TxHistory, fold
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.states import TERMINAL, SubState
from fencepost.schemas.responses import (
    ActionOut,
    AttemptOut,
    BlockOut,
    ChainNonces,
    CommandOut,
    CompletionOut,
    ConfirmationsOut,
    HistoryOut,
    HistorySummaryOut,
    LeaseOut,
    NodeOut,
    SignerOut,
    TxOut,
)

# The sub-state of a transaction that waits while no endpoint of its chain answers. It is not stored.
RPC_DOWN = "RPC_DOWN"


def waiting_reason(view: TxView, *, is_chain_silent: bool) -> tuple[str | None, str | None]:
    """Return the sub-state and the reason to show.

    What stops a whole signer or chain is not stored on each transaction, but derived here.
    """
    if view.state in TERMINAL:
        return view.sub_state, None
    if view.block is None and view.protect_reason is not None and view.sub_state is not SubState.SUPERSEDED:
        return SubState.PROTECT, view.protect_reason
    if view.sub_state is None and is_chain_silent:
        return RPC_DOWN, f"no endpoint of chain {view.signer.chain_id} answers"
    return view.sub_state, view.error


def tx_out(
    view: TxView,
    *,
    parts: frozenset[Part],
    shows_nonce: bool,
    required: int | str,
    is_chain_silent: bool = False,
) -> TxOut:
    sub_state, reason = waiting_reason(view, is_chain_silent=is_chain_silent)
    history = fold(view.journal, view.journal_totals) if view.journal is not None else None
    return TxOut(
        tx_id=str(view.tx_id),
        request_id=view.request_id,
        chain_id=view.signer.chain_id,
        signer=view.signer.address,
        state=view.state,
        sub_state=sub_state,
        reason=UNSET if reason is None else reason if shows_nonce else without_nonces(reason),
        hash=view.tx_hash,
        nonce=view.nonce if shows_nonce else UNSET,
        error=view.error,
        block_number=view.block.number if view.block else None,
        block_hash=view.block.hash if view.block else None,
        confirmation_count=len(view.confirmations),
        submit_count=view.submit_count,
        tags=list(view.tags),
        valid_until=view.valid_until,
        created_at=view.created_at,
        updated_at=view.updated_at,
        finished_at=view.finished_at,
        payload=dict(view.payload) if Part.PAYLOAD in parts else UNSET,
        attempts=UNSET if view.attempts is None else [_attempt_out(attempt) for attempt in view.attempts],
        receipt=_plain(view.receipt) if Part.RECEIPT in parts else UNSET,
        confirmations=_confirmations_out(view, required) if Part.CONFIRMATIONS in parts else UNSET,
        history=_history_out(history) if history else UNSET,
        history_summary=_summary_out(history) if history else UNSET,
    )


def _plain(receipt: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if receipt is None else dict(receipt)


def _attempt_out(attempt: AttemptView) -> AttemptOut:
    return AttemptOut(
        number=attempt.number,
        purpose=attempt.purpose,
        type=int(attempt.type),
        hash=attempt.tx_hash,
        gas=attempt.gas,
        max_fee_per_gas=str(attempt.fees.fee_cap_wei),
        max_priority_fee_per_gas=str(attempt.fees.tip_wei),
        fee_source=attempt.fee_source or None,
        sent_count=attempt.sent_count,
        last_result=attempt.last_result,
        last_message=attempt.last_message,
        created_at=attempt.created_at,
    )


def _confirmations_out(view: TxView, required: int | str) -> ConfirmationsOut:
    return ConfirmationsOut(
        count=len(view.confirmations),
        required=required,
        blocks=blocks_out(view.confirmations),
        new_fork=view.fork is not None,
        forked_at=view.fork.at if view.fork else UNSET,
        replaced=blocks_out(view.fork.replaced) if view.fork else UNSET,
    )


def blocks_out(blocks: Sequence[BlockRef]) -> list[BlockOut]:
    return [BlockOut(number=block.number, hash=block.hash) for block in blocks]


def _history_out(history: TxHistory) -> list[HistoryOut]:
    return [
        HistoryOut(
            sub_status=period.sub_status,
            time=period.at,
            actions=[_action_out(action) for action in period.actions],
        )
        for period in history.periods
    ]


def _action_out(action: Action) -> ActionOut:
    return ActionOut(
        action=action.action,
        count=action.count,
        first_occurrence=action.first_at,
        last_occurrence=action.last_at,
        last_info=action.last_info or UNSET,
        last_error=action.last_error or UNSET,
        last_error_time=action.last_error_at or UNSET,
    )


def _summary_out(history: TxHistory) -> list[HistorySummaryOut]:
    return [
        HistorySummaryOut(
            count=line.count,
            first_occurrence=line.first_at,
            last_occurrence=line.last_at,
            sub_status=line.name if line.kind == "subStatus" else UNSET,
            action=line.name if line.kind == "action" else UNSET,
        )
        for line in history.summary
    ]


def cursor_text(cursor: CompletionCursor) -> str:
    return f"{cursor.epoch}-{cursor.xid}-{cursor.id}"


def completion_out(completion: Completion, *, shows_nonce: bool) -> CompletionOut:
    return CompletionOut(
        cursor=cursor_text(completion.cursor),
        time=completion.at,
        tx_id=str(completion.tx_id),
        request_id=completion.request_id,
        chain_id=completion.signer.chain_id,
        signer=completion.signer.address,
        state=completion.state,
        state_now=completion.state_now,
        hash=completion.tx_hash,
        nonce=completion.nonce if shows_nonce else UNSET,
        block_number=completion.block_number,
        error=completion.error,
    )


def signer_out(
    view: SignerView,
    *,
    mode: str,
    max_in_flight: int,
    has_key: bool,
    shows_nonce: bool,
    on_chain: ChainNonces | UnsetType | None = UNSET,
    balance_wei: str | UnsetType | None = UNSET,
    chain_error: str | UnsetType = UNSET,
) -> SignerOut:
    lease = None
    if view.lease is not None:
        lease = LeaseOut(
            owner=view.lease.owner,
            token=view.lease.token,
            held=view.lease.held_until is not None,
            acquired_at=view.lease.acquired_at,
            held_until=view.lease.held_until,
        )
    return SignerOut(
        chain_id=view.signer.chain_id,
        address=view.signer.address,
        state=view.state,
        reason=view.reason,
        paused=view.is_paused,
        mode=mode,
        max_in_flight=max_in_flight,
        has_key=has_key,
        in_flight=view.in_flight,
        queued=view.queued,
        suspended=view.suspended,
        lease=lease,
        next_nonce=view.next_nonce if shows_nonce else UNSET,
        start_nonce=view.start_nonce if shows_nonce else UNSET,
        balance_wei=balance_wei,
        chain_nonces=on_chain if shows_nonce else UNSET,
        chain_error=chain_error,
    )


def command_out(
    view: CommandView,
    *,
    tx: TxOut | UnsetType = UNSET,
    signer: SignerOut | UnsetType = UNSET,
    drained: bool | UnsetType = UNSET,
    withdrawn: bool | UnsetType = UNSET,
) -> CommandOut:
    return CommandOut(
        command_id=str(view.id),
        command=view.command,
        done=view.done_at is not None,
        applied=view.applied,
        outcome=view.outcome,
        asked_by=view.author,
        reason=view.reason,
        asked_at=view.created_at,
        done_at=view.done_at,
        tx=tx,
        signer=signer,
        drained=drained,
        withdrawn=withdrawn,
    )


def node_out(view: NodeView, *, is_this: bool) -> NodeOut:
    return NodeOut(
        name=view.name,
        incarnation=str(view.incarnation),
        url=view.url,
        mode=view.mode,
        version=view.version,
        started_at=view.started_at,
        heartbeat_at=view.heartbeat_at,
        is_live=view.is_live,
        signers=view.signers,
        is_this=is_this,
    )

"""List every operation of the REST API. Routes, checks, the OpenAPI document and /docs are built from this table."""

from __future__ import annotations

import msgspec

from fencepost.api import (
    commands,
    events,
    explanations,
    nonces,
    signers,
    spending_policy,
    submission,
    subscriptions,
    system,
    transactions,
)
from fencepost.api.context import Handler, Operation
from fencepost.api.parsing import MAX_BATCH_BYTES
from fencepost.application.api_keys import Scope
from fencepost.schemas.events import EventOut, EventSelection, EventsOut, EventsQuery
from fencepost.schemas.explanations import ClusterStatusOut, ExplanationOut
from fencepost.schemas.requests import (
    AllocateIn,
    BatchEnvelope,
    ByHashQuery,
    ByRequestQuery,
    CommandIn,
    CompletionsQuery,
    GetQuery,
    ListQuery,
    PolicyIn,
    RecyclableIn,
    SignerCommandQuery,
    SignerQuery,
    SignersQuery,
    SubmittedIn,
    TimeoutQuery,
    TxRequest,
    UnprotectIn,
    UsedIn,
    WaitQuery,
)
from fencepost.schemas.responses import (
    BatchOut,
    ChainFeesOut,
    CommandOut,
    CompletionsOut,
    NodesOut,
    NonceOut,
    NoncesOut,
    NonceStatusOut,
    PolicyOut,
    ReadyOut,
    SignerOut,
    SignersPage,
    StatusOut,
    TxOut,
    TxPage,
    VersionOut,
)
from fencepost.schemas.subscriptions import (
    AttemptsQuery,
    DeletedOut,
    DeliveryAttemptOut,
    DeliveryAttemptsOut,
    ReplayIn,
    ReplayOut,
    ResumeIn,
    SubscriptionIn,
    SubscriptionOut,
    SubscriptionsOut,
)

PREFIX = "/api/v1"

_READ = (Scope.TX_READ,)
_WRITE = (Scope.TX_WRITE,)
_OPERATE = (Scope.OPERATOR,)
_SUBMIT_PROBLEMS = (
    "request_conflict",
    "signer_protected",
    "overloaded",
    "policy_refused",
    "not_leader",
    "signer_unknown",
    "chain_unknown",
)


def operations() -> list[Operation]:
    return [
        *_submissions(),
        *_transaction_queries(),
        *_explanations(),
        *_events(),
        *_subscriptions(),
        *(_tx_command(command, summary) for command, summary in _TX_COMMANDS.items()),
        *_signers(),
        *(_signer_command(action, summary) for action, summary in _SIGNER_COMMANDS.items()),
        *_policies(),
        *_nonces(),
        *_node(),
    ]


def _submissions() -> list[Operation]:
    return [
        Operation(
            "POST",
            f"{PREFIX}/tx",
            "submitTx",
            "Submit a transaction. 202 if it is new; 200 if it is known or has reached the milestone.",
            submission.submit_one,
            {200: TxOut, 202: TxOut},
            "Transactions",
            scopes=_WRITE,
            query=WaitQuery,
            body=TxRequest,
            accepts_forwarded=True,
            problems=_SUBMIT_PROBLEMS,
        ),
        Operation(
            "POST",
            f"{PREFIX}/tx/batch",
            "submitBatch",
            "Submit up to 1,000 transactions. Each has its own result; an invalid one does not affect the others.",
            submission.submit_batch,
            {200: BatchOut},
            "Transactions",
            scopes=_WRITE,
            body=BatchEnvelope,
            max_bytes=MAX_BATCH_BYTES,
            decodes_itself=True,
            charges_itself=True,
            accepts_forwarded=True,
        ),
    ]


def _transaction_queries() -> list[Operation]:
    return [
        Operation(
            "GET",
            f"{PREFIX}/tx",
            "listTx",
            "List transactions from the newest to the oldest, in pages.",
            transactions.page,
            {200: TxPage},
            "Transactions",
            scopes=_READ,
            query=ListQuery,
            problems=("chain_unknown", "cursor_invalid"),
        ),
        Operation(
            "GET",
            f"{PREFIX}/tx/by-request",
            "getTxByRequest",
            "Get a transaction by its request id.",
            transactions.by_request,
            {200: TxOut},
            "Transactions",
            scopes=_READ,
            query=ByRequestQuery,
            problems=("tx_not_found", "chain_unknown"),
        ),
        Operation(
            "GET",
            f"{PREFIX}/tx/by-hash/{{hash}}",
            "getTxByHash",
            "Get a transaction by the hash of any of its attempts.",
            transactions.by_hash,
            {200: TxOut},
            "Transactions",
            scopes=_READ,
            query=ByHashQuery,
            problems=("tx_not_found", "chain_unknown"),
        ),
        Operation(
            "GET",
            f"{PREFIX}/tx/{{tx_id}}",
            "getTx",
            "Get a transaction. 202 if it has not reached the milestone in time.",
            transactions.get,
            {200: TxOut, 202: TxOut},
            "Transactions",
            scopes=_READ,
            query=GetQuery,
            problems=("tx_not_found",),
        ),
        Operation(
            "GET",
            f"{PREFIX}/completions",
            "listCompletions",
            "List ended transactions in an order that never skips one. Pass `next` as `after`.",
            transactions.completions,
            {200: CompletionsOut},
            "Transactions",
            scopes=_READ,
            query=CompletionsQuery,
            problems=("cursor_invalid",),
        ),
    ]


def _explanations() -> list[Operation]:
    return [
        Operation(
            "GET",
            f"{PREFIX}/tx/{{tx_id}}/explain",
            "explainTx",
            "Explain why a transaction is not final: one cause, its evidence, and what to do.",
            explanations.tx,
            {200: ExplanationOut},
            "Transactions",
            scopes=_READ,
            problems=("tx_not_found",),
        ),
        Operation(
            "GET",
            f"{PREFIX}/signers/{{address}}/explain",
            "explainSigner",
            "Explain why a signer does not send: its own cause, or that of the transaction at the head of its lane.",
            explanations.signer,
            {200: ExplanationOut},
            "Signers",
            scopes=_READ,
            query=SignerQuery,
            problems=("signer_not_found", "chain_unknown", "address_invalid"),
        ),
    ]


_EVENT_PROBLEMS = ("cursor_invalid", "events_expired", "address_invalid", "chain_unknown")


def _events() -> list[Operation]:
    return [
        Operation(
            "GET",
            f"{PREFIX}/events",
            "listEvents",
            "List events in an order that never skips one, or wait for the next. Pass `next` as `after`.",
            events.page,
            {200: EventsOut},
            "Events",
            scopes=_READ,
            query=EventsQuery,
            problems=_EVENT_PROBLEMS,
        ),
        Operation(
            "GET",
            f"{PREFIX}/events/stream",
            "streamEvents",
            "Stream events as server-sent events. `Last-Event-ID` continues after an event and replaces `after`.",
            events.stream,
            {200: EventOut},
            "Events",
            scopes=_READ,
            query=EventSelection,
            bounds_itself=True,
            problems=_EVENT_PROBLEMS,
            media_type="text/event-stream",
        ),
    ]


_TX_COMMANDS = {
    "cancel": "Cancel a transaction: drop it if it has no nonce yet, else replace it by a filler at the same nonce.",
    "suspend": "Suspend a transaction until it is resumed.",
    "resume": "Resume a suspended transaction.",
    "resubmit": "Send the same signed bytes again now.",
    "bump": "Sign the same transaction at a higher fee now, with the same nonce.",
}


def _tx_command(command: str, summary: str) -> Operation:
    return Operation(
        "POST",
        f"{PREFIX}/tx/{{tx_id}}/{command}",
        f"{command}Tx",
        summary,
        commands.transaction_command(command),
        {200: CommandOut, 202: CommandOut},
        "Transactions",
        scopes=(Scope.TX_WRITE, Scope.OPERATOR) if command == "cancel" else _OPERATE,
        query=TimeoutQuery,
        body=CommandIn,
        body_needed=False,
        problems=("tx_not_found", "tx_ended"),
    )


def _signers() -> list[Operation]:
    return [
        Operation(
            "GET",
            f"{PREFIX}/signers",
            "listSigners",
            "List the signers that have a key on this node or transactions in the database, in pages.",
            signers.page,
            {200: SignersPage},
            "Signers",
            scopes=_READ,
            query=SignersQuery,
            problems=("cursor_invalid",),
        ),
        Operation(
            "GET",
            f"{PREFIX}/signers/{{address}}",
            "getSigner",
            "Get a signer, with its balance and nonces on the chain.",
            signers.detail,
            {200: SignerOut},
            "Signers",
            scopes=_READ,
            query=SignerQuery,
            problems=("signer_not_found", "chain_unknown", "address_invalid"),
        ),
        Operation(
            "GET",
            f"{PREFIX}/commands/{{command_id}}",
            "getCommand",
            "Get an operator command and its outcome.",
            commands.command,
            {200: CommandOut},
            "Signers",
            scopes=_READ,
            problems=("command_not_found",),
        ),
        Operation(
            "DELETE",
            f"{PREFIX}/commands/{{command_id}}",
            "withdrawCommand",
            "Withdraw an operator command that the lane has not run yet.",
            commands.withdraw,
            {200: CommandOut, 202: CommandOut},
            "Signers",
            scopes=_OPERATE,
            problems=("command_not_found",),
        ),
    ]


_SIGNER_COMMANDS = {
    "pause": "Pause a signer: allocate no new nonces. Transactions that have a nonce continue.",
    "resume": "Resume a paused signer.",
    "drain": "Pause a signer and wait until no transaction is in flight. The signer stays paused.",
    "protect": "Put a signer into PROTECT: accept and send nothing until an operator decides.",
    "unprotect": "End PROTECT, with a decision about the nonce and its reason.",
}


def _signer_command(action: str, summary: str) -> Operation:
    return Operation(
        "POST",
        f"{PREFIX}/signers/{{address}}/{action}",
        f"{action}Signer",
        summary,
        commands.drain if action == "drain" else commands.signer_command(action),
        {200: CommandOut, 202: CommandOut},
        "Signers",
        scopes=_OPERATE,
        query=SignerCommandQuery,
        body=UnprotectIn if action == "unprotect" else CommandIn,
        body_needed=action == "unprotect",
        problems=("signer_not_found", "signer_state", "chain_unknown", "address_invalid"),
    )


def _subscriptions() -> list[Operation]:
    """List the operations of subscriptions; each key sees its own."""
    path = f"{PREFIX}/subscriptions"
    one = f"{path}/{{subscription_id}}"
    known = ("subscription_not_found",)
    return [
        Operation(
            "POST",
            path,
            "createSubscription",
            "Create a subscription of this key. The secret of a webhook is shown once.",
            subscriptions.create,
            {201: SubscriptionOut},
            "Subscriptions",
            scopes=_READ,
            body=SubscriptionIn,
            problems=("too_many_subscriptions", "cursor_invalid", "chain_unknown"),
        ),
        Operation(
            "GET",
            path,
            "listSubscriptions",
            "List the subscriptions of this key; of all keys for a node administrator.",
            subscriptions.list_all,
            {200: SubscriptionsOut},
            "Subscriptions",
            scopes=_READ,
        ),
        Operation(
            "GET",
            one,
            "getSubscription",
            "Get a subscription.",
            subscriptions.get,
            {200: SubscriptionOut},
            "Subscriptions",
            scopes=_READ,
            problems=known,
        ),
        Operation(
            "DELETE",
            one,
            "deleteSubscription",
            "Delete a subscription with its deliveries and attempts.",
            subscriptions.delete,
            {200: DeletedOut},
            "Subscriptions",
            scopes=_READ,
            problems=known,
        ),
        *_subscription_changes(one, known),
        *_subscription_deliveries(one, known),
    ]


def _subscription_changes(one: str, known: tuple[str, ...]) -> list[Operation]:
    changes: list[tuple[str, str, str, Handler]] = [
        ("pause", "pauseSubscription", "Stop deliveries. The log keeps the events.", subscriptions.pause),
        (
            "rotate-secret",
            "rotateSubscriptionSecret",
            "Get a new secret, shown once. The former one signs for `events.webhook.secret_overlap` too.",
            subscriptions.rotate_secret,
        ),
    ]
    return [
        Operation(
            "POST",
            f"{one}/{verb}",
            name,
            summary,
            handler,
            {200: SubscriptionOut},
            "Subscriptions",
            scopes=_READ,
            problems=(*known, "refused"),
        )
        for verb, name, summary, handler in changes
    ]


def _subscription_deliveries(one: str, known: tuple[str, ...]) -> list[Operation]:
    return [
        Operation(
            "POST",
            f"{one}/resume",
            "resumeSubscription",
            "Start deliveries again, at the checkpoint or from a new start.",
            subscriptions.resume,
            {200: SubscriptionOut},
            "Subscriptions",
            scopes=_READ,
            body=ResumeIn,
            body_needed=False,
            problems=(*known, "cursor_invalid"),
        ),
        Operation(
            "POST",
            f"{one}/test",
            "testSubscription",
            "Send a test event now, and return what the endpoint answered.",
            subscriptions.test,
            {200: DeliveryAttemptOut},
            "Subscriptions",
            scopes=_READ,
            bounds_itself=True,
            problems=(*known, "refused"),
        ),
        Operation(
            "POST",
            f"{one}/replay",
            "replaySubscription",
            "Send again: one event, a range, or everything that was given up since a time.",
            subscriptions.replay,
            {200: ReplayOut},
            "Subscriptions",
            scopes=_READ,
            body=ReplayIn,
            problems=(*known, "event_not_found", "cursor_invalid", "events_expired"),
        ),
        Operation(
            "GET",
            f"{one}/attempts",
            "listAttempts",
            "List the newest attempts to deliver, with status and the first KB of the answer.",
            subscriptions.attempts,
            {200: DeliveryAttemptsOut},
            "Subscriptions",
            scopes=_READ,
            query=AttemptsQuery,
            problems=known,
        ),
    ]


def _policies() -> list[Operation]:
    path = f"{PREFIX}/signers/{{address}}/policy"
    problems = ("signer_not_found", "chain_unknown", "address_invalid")
    lines: list[tuple[str, str, str, Handler, Scope]] = [
        (
            "GET",
            "getPolicy",
            "Get a signer's spending policy, and what it has spent today.",
            spending_policy.get,
            Scope.OPERATOR,
        ),
        ("PUT", "putPolicy", "Replace a signer's spending policy.", spending_policy.put, Scope.ADMIN),
        (
            "DELETE",
            "removePolicy",
            "Remove a signer's spending policy.",
            spending_policy.remove,
            Scope.ADMIN,
        ),
    ]
    return [
        Operation(
            method,
            path,
            name,
            summary,
            handler,
            {200: PolicyOut},
            "Signers",
            scopes=(scope,),
            query=SignerQuery,
            body=PolicyIn if method == "PUT" else None,
            problems=problems,
        )
        for method, name, summary, handler, scope in lines
    ]


def _nonces() -> list[Operation]:
    """List the operations of the nonce service; they respond 404 unless `nonce_service.enabled`."""
    path = f"{PREFIX}/nonces/{{address}}"
    known = (
        "not_found",
        "chain_unknown",
        "address_invalid",
        "signer_elsewhere",
        "nonce_unavailable",
        "not_leader",
    )
    marks: dict[str, tuple[str, type[msgspec.Struct]]] = {
        "submitted": (
            "Record the transaction that uses the nonce. The nonce is closed once that transaction is confirmed.",
            SubmittedIn,
        ),
        "used": ("Close the nonce as used. It is never allocated again.", UsedIn),
        "recyclable": ("Release an unused nonce, so that it can be allocated again.", RecyclableIn),
    }
    return [
        Operation(
            "POST",
            path,
            "allocateNonces",
            "Allocate nonces of a signer whose transactions the caller sends. Released nonces are allocated first.",
            nonces.allocate,
            {200: NoncesOut},
            "Nonces",
            scopes=_WRITE,
            query=SignerQuery,
            body=AllocateIn,
            body_needed=False,
            accepts_forwarded=True,
            problems=known,
        ),
        Operation(
            "GET",
            path,
            "getNonces",
            "Count the held, submitted, consumed and released nonces of a signer.",
            nonces.status,
            {200: NonceStatusOut},
            "Nonces",
            scopes=_READ,
            query=SignerQuery,
            problems=("signer_not_found", *known),
        ),
        *(
            Operation(
                "POST",
                f"{path}/{{nonce}}/{mark}",
                f"{mark}Nonce",
                summary,
                nonces.mark(mark),
                {200: NonceOut},
                "Nonces",
                scopes=_WRITE,
                query=SignerQuery,
                body=body,
                problems=("hold_lost", "nonce_conflict", *known),
            )
            for mark, (summary, body) in marks.items()
        ),
    ]


def _node() -> list[Operation]:
    about: list[tuple[str, str, Handler, type[msgspec.Struct], tuple[str, ...]]] = [
        ("healthz", "Check that the process is alive.", system.alive, StatusOut, ()),
        (
            "readyz",
            "Check that the node accepts requests, and report whether it can send them.",
            system.ready,
            ReadyOut,
            ("database_unavailable", "chain_unavailable"),
        ),
        ("version", "Get the version, the name and the chains of this node.", system.version, VersionOut, ()),
    ]
    listed = [
        Operation(
            "GET",
            f"{prefix}/{name}",
            f"{name}{suffix}",
            text,
            handler,
            {200: answer},
            "Node",
            problems=problems,
        )
        for prefix, suffix in (("", ""), (PREFIX, "V1"))
        for name, text, handler, answer, problems in about
    ]
    nodes = Operation(
        "GET",
        f"{PREFIX}/nodes",
        "listNodes",
        "List the known nodes, live ones first.",
        system.nodes,
        {200: NodesOut},
        "Node",
        scopes=_READ,
    )
    status = Operation(
        "GET",
        f"{PREFIX}/status",
        "getStatus",
        "Report what is wrong anywhere: database, chains, endpoints, nodes and signers.",
        explanations.status,
        {200: ClusterStatusOut},
        "Node",
        scopes=_READ,
    )
    fees = Operation(
        "GET",
        f"{PREFIX}/chains/{{chain_id}}/fees",
        "getChainFees",
        "Get what each fee tier pays now on a chain, and which source said so.",
        system.chain_fees,
        {200: ChainFeesOut},
        "Node",
        scopes=_READ,
        problems=("chain_unknown", "chain_unavailable"),
    )
    return [nodes, status, fees, *listed]

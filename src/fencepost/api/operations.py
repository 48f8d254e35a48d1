"""Everything that the API can do, one line each. Routes, checks, the OpenAPI document and /docs come from this table."""

from __future__ import annotations

import msgspec

from fencepost.api import look, nonces, people, policy, signers, submit, system
from fencepost.api.bodies import MOST_BATCH_BYTES
from fencepost.api.calls import Handler, Operation
from fencepost.api.wire_in import (
    AllocateIn,
    BatchEnvelope,
    ByHashQuery,
    ByRequestQuery,
    CompletionsQuery,
    GetQuery,
    ListQuery,
    PolicyIn,
    RecyclableIn,
    SignerQuery,
    SignersQuery,
    SignerWishQuery,
    SubmittedIn,
    TimeoutQuery,
    TxRequest,
    UnprotectIn,
    UsedIn,
    WaitQuery,
    WishIn,
)
from fencepost.api.wire_out import (
    BatchOut,
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
from fencepost.application.api_keys import Scope

PREFIX = "/api/v1"

_READ = (Scope.TX_READ,)
_WRITE = (Scope.TX_WRITE,)
_OPERATE = (Scope.OPERATOR,)
_TAKING = (
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
        *_transactions(),
        *(_transaction_wish(command, summary) for command, summary in _TRANSACTION_WISHES.items()),
        *_signers(),
        *(_signer_wish(action, summary) for action, summary in _SIGNER_WISHES.items()),
        *_policies(),
        *_nonces(),
        *_node(),
    ]


def _transactions() -> list[Operation]:
    return [
        Operation(
            "POST",
            f"{PREFIX}/tx",
            "submitTx",
            "Take a transaction: 202 when it is new, 200 when it is known or what was waited for is reached.",
            submit.one,
            {200: TxOut, 202: TxOut},
            "Transactions",
            scopes=_WRITE,
            query=WaitQuery,
            body=TxRequest,
            takes_handed_on=True,
            problems=_TAKING,
        ),
        Operation(
            "POST",
            f"{PREFIX}/tx/batch",
            "submitBatch",
            "Take up to 1,000 transactions, with a result for each; one bad one does not harm the others.",
            submit.batch,
            {200: BatchOut},
            "Transactions",
            scopes=_WRITE,
            body=BatchEnvelope,
            most_bytes=MOST_BATCH_BYTES,
            decodes_itself=True,
            charges_itself=True,
            takes_handed_on=True,
        ),
        Operation(
            "GET",
            f"{PREFIX}/tx",
            "listTx",
            "Transactions from the newest to the oldest, in pages.",
            look.page,
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
            "One transaction, by its caller's own name for it.",
            look.by_request,
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
            "One transaction, by the hash of any of its attempts.",
            look.by_hash,
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
            "One transaction; 202 when what was waited for is not reached.",
            look.get,
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
            "Everything that ended, in an order that never skips: pass `next` as `after`.",
            look.completions,
            {200: CompletionsOut},
            "Transactions",
            scopes=_READ,
            query=CompletionsQuery,
            problems=("cursor_invalid",),
        ),
    ]


_TRANSACTION_WISHES = {
    "cancel": "Drop it before it has a nonce, replace it at the same nonce after that.",
    "suspend": "Leave it alone until it is resumed.",
    "resume": "Go on with a suspended transaction.",
    "resubmit": "Send the same bytes again, now.",
    "bump": "Replace it at the same nonce by itself at a better price, now.",
}


def _transaction_wish(command: str, summary: str) -> Operation:
    return Operation(
        "POST",
        f"{PREFIX}/tx/{{tx_id}}/{command}",
        f"{command}Tx",
        summary,
        people.about_transaction(command),
        {200: CommandOut, 202: CommandOut},
        "Transactions",
        scopes=(Scope.TX_WRITE, Scope.OPERATOR) if command == "cancel" else _OPERATE,
        query=TimeoutQuery,
        body=WishIn,
        body_needed=False,
        problems=("tx_not_found", "tx_ended"),
    )


def _signers() -> list[Operation]:
    return [
        Operation(
            "GET",
            f"{PREFIX}/signers",
            "listSigners",
            "Signers with a key here or a past, in pages.",
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
            "One signer, with what the chain says about it.",
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
            "What became of a wish.",
            people.command,
            {200: CommandOut},
            "Signers",
            scopes=_READ,
            problems=("command_not_found",),
        ),
    ]


_SIGNER_WISHES = {
    "pause": "Give no new nonces; what has one goes on.",
    "resume": "Give nonces again after a pause.",
    "drain": "Pause, and wait until nothing is in flight; it stays paused.",
    "protect": "Take nothing new and send nothing until a person decides.",
    "unprotect": "Go on after PROTECT, with a decision about the nonce and the reason for it.",
}


def _signer_wish(action: str, summary: str) -> Operation:
    return Operation(
        "POST",
        f"{PREFIX}/signers/{{address}}/{action}",
        f"{action}Signer",
        summary,
        people.drain if action == "drain" else people.about_signer(action),
        {200: CommandOut, 202: CommandOut},
        "Signers",
        scopes=_OPERATE,
        query=SignerWishQuery,
        body=UnprotectIn if action == "unprotect" else WishIn,
        body_needed=action == "unprotect",
        problems=("signer_not_found", "signer_state", "chain_unknown", "address_invalid"),
    )


def _policies() -> list[Operation]:
    path = f"{PREFIX}/signers/{{address}}/policy"
    problems = ("signer_not_found", "chain_unknown", "address_invalid")
    lines: list[tuple[str, str, str, Handler, Scope]] = [
        ("GET", "getPolicy", "What a signer may do, and what its day has cost.", policy.get, Scope.OPERATOR),
        ("PUT", "putPolicy", "Set what a signer may do, as a whole.", policy.put, Scope.ADMIN),
        ("DELETE", "removePolicy", "Let the signer do everything again.", policy.remove, Scope.ADMIN),
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
    """Closed (404) unless `nonce_service.enabled`."""
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
            "Tell which transaction has the nonce; it is closed by itself when mined to depth.",
            SubmittedIn,
        ),
        "used": ("Close the nonce: it never comes back.", UsedIn),
        "recyclable": ("Give the nonce back: it was not and will not be used.", RecyclableIn),
    }
    return [
        Operation(
            "POST",
            path,
            "allocateNonces",
            "Hold nonces of a signer whose transactions the caller sends: released ones first.",
            nonces.allocate,
            {200: NoncesOut},
            "Nonces",
            scopes=_WRITE,
            query=SignerQuery,
            body=AllocateIn,
            body_needed=False,
            problems=known,
        ),
        Operation(
            "GET",
            path,
            "getNonces",
            "How many nonces of a signer are held, submitted, consumed and released.",
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
        ("healthz", "The process is alive.", system.alive, StatusOut, ()),
        ("readyz", "Requests would be taken.", system.ready, ReadyOut, ("database_unavailable",)),
        ("version", "Version, name and chains of this node.", system.version, VersionOut, ()),
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
        "This node, and the others that hold a signer now.",
        system.nodes,
        {200: NodesOut},
        "Node",
        scopes=_READ,
    )
    return [nodes, *listed]

"""Handle JSON-RPC methods other than `eth_sendTransaction`: some here, the rest by the chain's endpoint.

A lookup by the hash of any attempt finds the mined attempt of the same intent. A filler that consumed the nonce of a
cancelled transaction is not returned for it: the old hash then has no receipt, as on any endpoint, so clients detect
the cancellation.

Permissions of methods that are passed to the endpoint:

- Reads are open to every key, except expensive ones (`debug_trace*`, `trace_*` and others), which need the scope
  `rpc:expensive`; operators and admins have it.
- Methods that sign or unlock (`personal_*`, `eth_sign*`) need an API key with the scope admin, even on an open node.
- Methods that administer an endpoint (all other families) need the scope admin, or an open node.
- Methods that would send for a managed signer are rejected: they would use one of its nonces.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from fencepost import bounded_json
from fencepost.api.jsonrpc.errors import RpcFault
from fencepost.api.jsonrpc.parsing import RpcRequestContext
from fencepost.application.api_keys import Scope
from fencepost.application.queries import Part, SignerView
from fencepost.domain.ids import Address, Signer, TxHash, parse_address, parse_tx_hash
from fencepost.domain.transaction_state import Purpose
from fencepost.errors import RpcUnavailable

SEND = "eth_sendTransaction"
MAX_METHOD_CHARS = 100

_HEX = re.compile(r"0x[0-9a-fA-F]+")
_METHOD = re.compile(r"[a-zA-Z0-9]+_[a-zA-Z0-9_]+")
_RAW = frozenset(
    {"eth_sendRawTransaction", "eth_sendRawTransactionSync", "eth_sendRawTransactionConditional"}
)
_BUILDS_TRANSACTIONS = frozenset(
    {"eth_signTransaction", "personal_signTransaction", "personal_sendTransaction"}
)
_SIGNS = re.compile(r"personal_|eth_sign")
_SENDS = re.compile(r"eth_(?:send(?!UserOperation)|resend|submitTransaction)")
_READS = re.compile(r"(?:eth|net|web3|txpool|trace|ots|erigon|rpc)_|debug_(?:trace|get)")

# Reads that are expensive for an endpoint: they replay blocks, or return its whole pool.
_EXPENSIVE = re.compile(
    r"debug_(?:trace|get)|trace_|ots_|erigon_|txpool_(?!status)|eth_(?:simulateV1|callMany|callBundle|getProof)"
)

Method = Callable[[RpcRequestContext, list[Any]], Awaitable[Any]]


async def accounts(context: RpcRequestContext, _params: list[Any]) -> list[Address]:
    call = context.call
    return [address for address in call.services.signers.addresses() if call.caller.may_use(address)]


async def chain_id(context: RpcRequestContext, _params: list[Any]) -> str:
    return hex(context.chain_id)


async def net_version(context: RpcRequestContext, _params: list[Any]) -> str:
    return str(context.chain_id)


async def transaction_count(context: RpcRequestContext, params: list[Any]) -> Any:
    """Return the transaction count; for managed signers `pending` includes all accepted requests, also without a nonce."""
    signer = Signer(context.chain_id, _address(params))
    view = await _managed(context, signer) if context.call.caller.may_use(signer.address) else None
    if view is None:  # not managed, or not visible to this caller: only the chain's public count is returned
        return await context.call_endpoint("eth_getTransactionCount", params)
    count: Any
    if len(params) > 1 and params[1] == "pending":
        next_nonce = view.next_nonce
        if next_nonce is None:  # Fencepost never sent a transaction of this signer
            next_nonce = await context.call.services.chains.by_id[context.chain_id].nonce(
                signer.address, "pending"
            )
        count = hex(next_nonce + view.queued)
    else:
        count = await context.fetch("eth_getTransactionCount", params, str)
    if isinstance(count, str) and re.fullmatch(r"0x[0-9a-fA-F]{1,16}", count):
        context.nonce_hints.add(context.caller_id, signer, int(count, 16))
    return count


async def transaction_receipt(context: RpcRequestContext, params: list[Any]) -> Any:
    tx_hash = _hash(params)
    response = await context.call_endpoint("eth_getTransactionReceipt", [tx_hash])
    if bytes(response) != _NULL:
        return response
    others = await _siblings(context, tx_hash)
    found = await context.call.services.chains.by_id[context.chain_id].receipts(others)
    return next((receipt.raw for receipt in found if receipt is not None), None)


async def transaction_by_hash(context: RpcRequestContext, params: list[Any]) -> Any:
    tx_hash = _hash(params)
    response = await context.call_endpoint("eth_getTransactionByHash", [tx_hash])
    is_known = bytes(response) != _NULL
    if is_known and _block_number(response) is not None:
        return response
    others = await _siblings(context, tx_hash)
    chain = context.call.services.chains.by_id[context.chain_id]
    mined = [receipt.tx_hash for receipt in await chain.receipts(others) if receipt is not None]
    if not mined and is_known:
        return response
    # Not mined yet: the newest attempt is the one that a pool still has.
    for other in mined or others[-1:]:
        return await context.call_endpoint("eth_getTransactionByHash", [other])
    return None


class _MinedFields(msgspec.Struct):
    block_number: str | None = msgspec.field(name="blockNumber", default=None)


_NULL = b"null"
_MINED_FIELDS = msgspec.json.Decoder(_MinedFields)


def _block_number(transaction: msgspec.Raw) -> str | None:
    try:
        return bounded_json.decode(bytes(transaction), _MINED_FIELDS.decode).block_number
    except msgspec.DecodeError:
        raise RpcUnavailable("malformed response: the transaction has an unexpected type") from None


async def _siblings(context: RpcRequestContext, tx_hash: TxHash) -> list[TxHash]:
    """Return the hashes of the other attempts of the same intent, oldest first."""
    view = await context.call.services.reader.by_hash([context.chain_id], tx_hash, frozenset({Part.ATTEMPTS}))
    if view is None or not context.call.caller.may_use(view.signer.address):
        return []
    attempts = view.attempts
    purpose = {attempt.tx_hash: attempt.purpose for attempt in attempts or ()}
    if purpose.get(tx_hash) is not Purpose.INTENT:
        return []
    return [
        other for other, its_purpose in purpose.items() if its_purpose is Purpose.INTENT and other != tx_hash
    ]


OWN: dict[str, Method] = {
    "eth_accounts": accounts,
    "eth_requestAccounts": accounts,
    "eth_chainId": chain_id,
    "net_version": net_version,
    "eth_getTransactionCount": transaction_count,
    "eth_getTransactionReceipt": transaction_receipt,
    "eth_getTransactionByHash": transaction_by_hash,
}


async def call_method(context: RpcRequestContext, method: str, params: list[Any]) -> Any:
    """Handle any method except `eth_sendTransaction`."""
    if len(method) > MAX_METHOD_CHARS or not _METHOD.fullmatch(method):
        raise RpcFault("method_not_allowed", f"{method[:MAX_METHOD_CHARS]!r} is not a JSON-RPC method")
    if (own := OWN.get(method)) is not None:
        return await own(context, params)
    await _require_permission(context, method, params)
    return await context.call_endpoint(method, params)


async def _require_permission(context: RpcRequestContext, method: str, params: list[Any]) -> None:
    caller = context.call.caller
    if method in _RAW:
        caller.require(Scope.TX_WRITE)
        await _reject_managed(context, _sender(context, params))
    elif _SIGNS.match(method):
        if caller.key is None or not caller.is_node_admin:
            raise RpcFault(
                "method_not_allowed", f"{method} needs an API key with the scope admin for all signers"
            )
        if method in _BUILDS_TRANSACTIONS:
            transaction = params[0] if params and isinstance(params[0], dict) else {}
            await _reject_managed(context, _address([transaction.get("from")]))
    elif _SENDS.match(method):
        raise RpcFault("method_not_allowed", f"{method} could use a managed nonce: use {SEND}")
    elif _EXPENSIVE.match(method):
        caller.require(Scope.RPC_EXPENSIVE)
    elif not _READS.match(method) and not caller.is_node_admin:
        raise RpcFault(
            "method_not_allowed",
            f"{method} administers an endpoint: it needs an API key with the scope admin for all signers",
        )


async def _reject_managed(context: RpcRequestContext, sender: Address) -> None:
    if await _managed(context, Signer(context.chain_id, sender)) is not None:
        raise RpcFault("signer_managed", f"the nonces of {sender} are managed by Fencepost", field="from")


def _sender(context: RpcRequestContext, params: list[Any]) -> Address:
    raw = params[0] if params else None
    if not isinstance(raw, str) or len(raw) % 2 or not _HEX.fullmatch(raw):
        raise RpcFault("params_invalid", "the first parameter must be the raw transaction: 0x and hex digits")
    try:
        return context.call.services.codec.sender_of(bytes.fromhex(raw[2:]))
    except ValueError as error:
        raise RpcFault(
            "params_invalid", f"the signer of the raw transaction can't be recovered: {error}"
        ) from None


async def _managed(context: RpcRequestContext, signer: Signer) -> SignerView | None:
    """Return the signer if the core assigns its nonces, on this node or another.

    The callers of the nonce service use the nonces of its signers themselves, even if this node has a key or a lease.
    """
    services = context.call.services
    view = await services.reader.signer(signer)
    if view.used_by == "nonce":
        return None
    return view if view.used_by == "core" or signer.address in services.signers.addresses() else None


def _address(params: list[Any]) -> Address:
    try:
        return parse_address(params[0])
    except (ValueError, TypeError, IndexError):
        raise RpcFault("params_invalid", "the address must be 0x and 40 hex digits") from None


def _hash(params: list[Any]) -> TxHash:
    try:
        return parse_tx_hash(params[0])
    except (ValueError, TypeError, IndexError):
        raise RpcFault("params_invalid", "the hash must be 0x and 64 hex digits") from None

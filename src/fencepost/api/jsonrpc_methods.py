"""The methods that are answered here, and what may be passed on to the chain's node.

Looking at a transaction by the hash of any attempt finds the one that mined, as long as that does what was asked for.
A filler that took the nonce of a cancelled transaction does not, and is not given out for it: the old hash then has no
receipt, as on any node, which is how clients find out by themselves that it was cancelled.

Passing on: what reads is open. What signs or unlocks (`personal_*`, `eth_sign*`) needs a key with the scope admin that
somebody gave; what runs a node (other families) needs that scope too, except on a door without keys. Nothing that
would send for one of our signers gets through: it would use a nonce that is ours.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from fencepost.api.jsonrpc_calls import Visit
from fencepost.api.jsonrpc_faults import Fault
from fencepost.application.api_keys import Scope
from fencepost.application.read import Part, SignerView
from fencepost.domain.ids import Address, Signer, TxHash, parse_address, parse_tx_hash
from fencepost.domain.managed import Purpose

SEND = "eth_sendTransaction"
MOST_METHOD_CHARS = 100

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

Method = Callable[[Visit, list[Any]], Awaitable[Any]]


async def accounts(visit: Visit, _params: list[Any]) -> list[Address]:
    call = visit.call
    return [address for address in call.services.addresses() if call.caller.may_use(address)]


async def chain_id(visit: Visit, _params: list[Any]) -> str:
    return hex(visit.chain_id)


async def net_version(visit: Visit, _params: list[Any]) -> str:
    return str(visit.chain_id)


async def transaction_count(visit: Visit, params: list[Any]) -> Any:
    """Of our signers: `pending` counts everything that was accepted, with a nonce or still waiting for one."""
    signer = Signer(visit.chain_id, _address(params))
    view = await _managed(visit, signer)
    if view is None:
        return await visit.pass_on("eth_getTransactionCount", params)
    count: Any
    if len(params) > 1 and params[1] == "pending":
        begun = view.next_nonce
        if begun is None:  # nothing of it was ever sent from here
            begun = await visit.call.services.chains[visit.chain_id].nonce(signer.address, "pending")
        count = hex(begun + view.queued)
    else:
        count = await visit.pass_on("eth_getTransactionCount", params)
    if isinstance(count, str) and re.fullmatch(r"0x[0-9a-fA-F]{1,16}", count):
        visit.told.tell(visit.caller_id, signer, int(count, 16))
    return count


async def transaction_receipt(visit: Visit, params: list[Any]) -> Any:
    tx_hash = _hash(params)
    said = await visit.pass_on("eth_getTransactionReceipt", [tx_hash])
    if said is not None:
        return said
    others = await _siblings(visit, tx_hash)
    found = await visit.call.services.chains[visit.chain_id].receipts(others)
    return next((receipt.raw for receipt in found if receipt is not None), None)


async def transaction_by_hash(visit: Visit, params: list[Any]) -> Any:
    tx_hash = _hash(params)
    said = await visit.pass_on("eth_getTransactionByHash", [tx_hash])
    if isinstance(said, dict) and said.get("blockNumber") is not None:
        return said
    others = await _siblings(visit, tx_hash)
    chain = visit.call.services.chains[visit.chain_id]
    mined = [receipt.tx_hash for receipt in await chain.receipts(others) if receipt is not None]
    if not mined and said is not None:
        return said
    # Not mined yet: the newest attempt is the one that a pool still has.
    for other in mined or others[-1:]:
        return await visit.pass_on("eth_getTransactionByHash", [other])
    return None


async def _siblings(visit: Visit, tx_hash: TxHash) -> list[TxHash]:
    """The other attempts at what this hash was to do, oldest first."""
    view = await visit.call.services.reader.by_hash([visit.chain_id], tx_hash, frozenset({Part.ATTEMPTS}))
    attempts = view.attempts if view is not None else None
    purpose = {attempt.tx_hash: attempt.purpose for attempt in attempts or ()}
    if purpose.get(tx_hash) is not Purpose.INTENT:
        return []
    return [other for other, its in purpose.items() if its is Purpose.INTENT and other != tx_hash]


OWN: dict[str, Method] = {
    "eth_accounts": accounts,
    "eth_requestAccounts": accounts,
    "eth_chainId": chain_id,
    "net_version": net_version,
    "eth_getTransactionCount": transaction_count,
    "eth_getTransactionReceipt": transaction_receipt,
    "eth_getTransactionByHash": transaction_by_hash,
}


async def answer(visit: Visit, method: str, params: list[Any]) -> Any:
    """Everything but `eth_sendTransaction`."""
    if len(method) > MOST_METHOD_CHARS or not _METHOD.fullmatch(method):
        raise Fault("method_not_allowed", f"{method[:MOST_METHOD_CHARS]!r} is no method of a node")
    if (own := OWN.get(method)) is not None:
        return await own(visit, params)
    await _require_permission(visit, method, params)
    return await visit.pass_on(method, params)


async def _require_permission(visit: Visit, method: str, params: list[Any]) -> None:
    caller = visit.call.caller
    if method in _RAW:
        caller.require(Scope.TX_WRITE)
        await _refuse_managed(visit, _sender(visit, params))
    elif _SIGNS.match(method):
        if caller.key is None or not caller.allows(Scope.ADMIN):
            raise Fault("method_not_allowed", f"{method} needs an API key with the scope admin")
        if method in _BUILDS_TRANSACTIONS:
            asked = params[0] if params and isinstance(params[0], dict) else {}
            await _refuse_managed(visit, _address([asked.get("from")]))
    elif _SENDS.match(method):
        raise Fault("method_not_allowed", f"{method} could use a nonce of ours: use {SEND}")
    elif not _READS.match(method) and not caller.allows(Scope.ADMIN):
        raise Fault("method_not_allowed", f"{method} runs a node: it needs the scope admin")


async def _refuse_managed(visit: Visit, sender: Address) -> None:
    if await _managed(visit, Signer(visit.chain_id, sender)) is not None:
        raise Fault("signer_managed", f"the nonces of {sender} are given here", field="from")


def _sender(visit: Visit, params: list[Any]) -> Address:
    raw = params[0] if params else None
    if not isinstance(raw, str) or not re.fullmatch(r"0x(?:[0-9a-fA-F]{2})+", raw):
        raise Fault("params_invalid", "the raw transaction is expected as 0x and hex digits")
    try:
        return visit.call.services.sender_of(bytes.fromhex(raw[2:]))
    except ValueError as error:
        raise Fault("params_invalid", f"nobody can tell who signed it: {error}") from None


async def _managed(visit: Visit, signer: Signer) -> SignerView | None:
    """The signer, if its nonces are given by us, on this node or another."""
    services = visit.call.services
    view = await services.reader.signer(signer)
    is_ours = signer.address in services.addresses() or view.lease is not None or view.next_nonce is not None
    return view if is_ours else None


def _address(params: list[Any]) -> Address:
    try:
        return parse_address(params[0])
    except (ValueError, TypeError, IndexError):
        raise Fault("params_invalid", "an address is expected: 0x and 40 hex digits") from None


def _hash(params: list[Any]) -> TxHash:
    try:
        return parse_tx_hash(params[0])
    except (ValueError, TypeError, IndexError):
        raise Fault("params_invalid", "a hash is expected: 0x and 64 hex digits") from None

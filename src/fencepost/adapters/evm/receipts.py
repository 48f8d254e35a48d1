"""Read receipts from endpoints, and merge what several endpoints return for one transaction.

A receipt that can't be read is represented by its error, which fails only the callers that requested it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fencepost.adapters.evm import decoding
from fencepost.adapters.evm.endpoints import Endpoint
from fencepost.domain.ids import TxHash
from fencepost.domain.transaction_state import Receipt
from fencepost.errors import RpcError, RpcUnavailable

Found = Receipt | RpcError | None


def calls(hashes: Sequence[TxHash]) -> list[tuple[str, Sequence[Any]]]:
    return [("eth_getTransactionReceipt", [tx_hash]) for tx_hash in hashes]


async def ask(endpoint: Endpoint, hashes: Sequence[TxHash]) -> list[Found]:
    """Fetch receipts from one endpoint; raise if no response is usable, so that another endpoint is tried."""
    responses = await endpoint.rpc.batch(calls(hashes))
    found = [read(endpoint, *pair) for pair in zip(hashes, responses, strict=True)]
    if isinstance(found[0], RpcError) and all(isinstance(receipt, RpcError) for receipt in found):
        raise found[0]
    return found


def read(endpoint: Endpoint, tx_hash: TxHash, answer: object) -> Found:
    if isinstance(answer, RpcError):
        return answer
    try:
        receipt = decoding.receipt(answer, requested_hash=tx_hash)
    except RpcUnavailable as error:
        return error
    if receipt is not None and receipt.tx_hash != tx_hash:
        return RpcUnavailable(f"{endpoint.rpc.endpoint}: the receipt of another transaction")
    return receipt


def usable(found: Sequence[Found]) -> list[Receipt | None]:
    """Return the receipts; raise the first error among them."""
    receipts: list[Receipt | None] = []
    for receipt in found:
        if isinstance(receipt, RpcError):
            raise receipt
        receipts.append(receipt)
    return receipts


def best_of(found: Sequence[Found]) -> Found:
    """Merge the responses of several endpoints for one transaction: a receipt wins over an error, an error over none."""
    receipt = next((one for one in found if isinstance(one, Receipt)), None)
    return receipt or next((one for one in found if one is not None), None)


def each(responses: list[Found] | RpcError, count: int) -> Sequence[Found]:
    """Return an endpoint's response per transaction; a request that failed as a whole is the response to all."""
    return [responses] * count if isinstance(responses, RpcError) else responses

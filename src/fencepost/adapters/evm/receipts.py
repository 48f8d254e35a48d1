"""Receipts of one endpoint, and what several of them said of the same transaction.

In the place of a receipt that could not be read stands why: it fails only those who asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fencepost.adapters.evm import answers
from fencepost.adapters.evm.endpoints import Endpoint
from fencepost.domain.ids import TxHash
from fencepost.domain.managed import Receipt
from fencepost.errors import RpcError, RpcUnavailable

Found = Receipt | RpcError | None


def calls(hashes: Sequence[TxHash]) -> list[tuple[str, Sequence[Any]]]:
    return [("eth_getTransactionReceipt", [tx_hash]) for tx_hash in hashes]


async def ask(endpoint: Endpoint, hashes: Sequence[TxHash]) -> list[Found]:
    """Raises when not one answer is usable, so that another endpoint is asked."""
    said = await endpoint.rpc.batch(calls(hashes))
    found = [read(endpoint, *pair) for pair in zip(hashes, said, strict=True)]
    if isinstance(found[0], RpcError) and all(isinstance(receipt, RpcError) for receipt in found):
        raise found[0]
    return found


def read(endpoint: Endpoint, tx_hash: TxHash, answer: object) -> Found:
    if isinstance(answer, RpcError):
        return answer
    try:
        receipt = answers.receipt(answer, asked=tx_hash)
    except RpcUnavailable as error:
        return error
    if receipt is not None and receipt.tx_hash != tx_hash:
        return RpcUnavailable(f"{endpoint.rpc.endpoint}: the receipt of another transaction")
    return receipt


def usable(found: Sequence[Found]) -> list[Receipt | None]:
    """As it is; raises what stands in the place of a receipt."""
    receipts: list[Receipt | None] = []
    for receipt in found:
        if isinstance(receipt, RpcError):
            raise receipt
        receipts.append(receipt)
    return receipts


def best_of(found: Sequence[Found]) -> Found:
    """What several endpoints said of one transaction: a receipt before an error, an error before nothing."""
    receipt = next((one for one in found if isinstance(one, Receipt)), None)
    return receipt or next((one for one in found if one is not None), None)


def each(said: list[Found] | RpcError, count: int) -> Sequence[Found]:
    """What an endpoint said to each; one that failed as a whole said the same to all."""
    return [said] * count if isinstance(said, RpcError) else said

"""Ask every endpoint of a chain what it sees, for explanations and the status page.

Each endpoint gets one batch. An endpoint that does not answer in time is a result, not an error. The calls do not count for
the health of an endpoint: a survey must not change which endpoint the lanes use.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final

from fencepost.adapters.evm import decoding
from fencepost.adapters.evm.endpoints import Endpoint
from fencepost.application.ports import EndpointReport, EndpointTrouble
from fencepost.domain.ids import Address, TxHash
from fencepost.errors import RpcError, RpcRefused, RpcUnavailable, WrongChain

MAX_ERROR_CHARS: Final = 300

_RATE_LIMITED: Final = re.compile(r"HTTP 429|too many requests|rate[- ]?limit|limit exceeded", re.IGNORECASE)
_RATE_LIMIT_CODES: Final = frozenset({429, -32005})


async def survey(
    endpoints: Sequence[Endpoint], address: Address | None, hashes: Sequence[TxHash], *, timeout_s: float
) -> list[EndpointReport]:
    """Return one report per endpoint, in their order, after at most `timeout_s`."""
    return await asyncio.gather(
        *(_report(endpoint, address, hashes, timeout_s=timeout_s) for endpoint in endpoints)
    )


async def _report(
    endpoint: Endpoint, address: Address | None, hashes: Sequence[TxHash], *, timeout_s: float
) -> EndpointReport:
    name = endpoint.rpc.endpoint
    try:
        async with asyncio.timeout(timeout_s):
            answers = await endpoint.batch(_calls(address, hashes))
        return _decoded(name, answers, has_account=address is not None)
    except TimeoutError:
        text = f"{name}: no answer within {timeout_s:g} s"
        return EndpointReport(name, EndpointTrouble.SILENT, text)
    except RpcError as error:
        return EndpointReport(name, _trouble(error), str(error)[:MAX_ERROR_CHARS])


def _calls(address: Address | None, hashes: Sequence[TxHash]) -> list[tuple[str, Sequence[Any]]]:
    calls: list[tuple[str, Sequence[Any]]] = [("eth_getBlockByNumber", ["latest", False])]
    if address is not None:
        calls += [
            ("eth_getTransactionCount", [address, "latest"]),
            ("eth_getTransactionCount", [address, "pending"]),
            ("eth_getBalance", [address, "latest"]),
        ]
    return [*calls, *(("eth_getTransactionByHash", [tx_hash]) for tx_hash in hashes)]


def _decoded(name: str, answers: Sequence[Any], *, has_account: bool) -> EndpointReport:
    head, *rest = answers
    if head is None:
        raise RpcRefused("the endpoint has no latest block yet")
    report = EndpointReport(name, head=decoding.header(head))
    if has_account:
        latest, pending, balance, *rest = rest
        report = report.changed(
            latest_nonce=decoding.quantity(latest, of="nonce"),
            pending_nonce=decoding.quantity(pending, of="nonce"),
            balance_wei=decoding.quantity(balance, of="balance"),
        )
    return report.changed(known=tuple(item is not None for item in rest))


def _trouble(error: RpcError) -> EndpointTrouble:
    if isinstance(error, WrongChain):
        return EndpointTrouble.WRONG_CHAIN
    code = error.rpc_code if isinstance(error, RpcRefused) else None
    if code in _RATE_LIMIT_CODES or _RATE_LIMITED.search(str(error)):
        return EndpointTrouble.RATE_LIMITED
    return EndpointTrouble.SILENT if isinstance(error, RpcUnavailable) else EndpointTrouble.REFUSED

"""Implement the `Chain` port over the endpoints of one EVM chain.

Contract, in addition to the port's
- A send goes to every healthy endpoint once, at the same time; `send_consensus.py` merges the responses. A returned hash
  that differs from the computed one is `UNKNOWN`: under load, nodes have returned the hash of another nonce.
- Sends of several callers share requests, and so do receipt requests (`batching.py`). Each caller gets its own results,
  and a receipt that can't be read fails only the callers that requested it.
- `knows`, and receipts that the best endpoint lacks, are requested from all healthy endpoints: one lagging node must not
  decide that a receipt does not exist, because a consumed nonce without a receipt looks like a foreign transaction.
  Other reads go to the best endpoint.
- A fee quote serves all signers for a second (`fee_quotes.py`).
- One identity check serves every caller that waited when it started. The next one starts `_IDENTITY_INTERVAL_S` later,
  because each check opens new connections.
- A rejection that would end a request (a fatal send result, a failed dry run) counts only if the endpoint repeats it over
  a new connection that still serves this chain.
- Call `verify_chain_id` first; before that, `chain_id` has no value.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from fencepost.adapters.evm import decoding, mined_transactions, receipts
from fencepost.adapters.evm.batching import RequestBatcher
from fencepost.adapters.evm.endpoints import Endpoint, Endpoints, consensus_value, require_answers
from fencepost.adapters.evm.fee_quotes import FeeQuotes, HistoryQuery, quote
from fencepost.adapters.evm.identity import ChainIdentity, ConfirmGenesis, reported_chain_id
from fencepost.adapters.evm.node_errors import Row, classify
from fencepost.adapters.evm.receipts import Found
from fencepost.adapters.evm.revert import refusal_reason
from fencepost.adapters.evm.rpc import MAX_BATCH, JsonRpc
from fencepost.adapters.evm.send_consensus import merge
from fencepost.adapters.evm.survey import survey
from fencepost.application.ports import Block, BlockTag, Chain, EndpointReport, Header
from fencepost.domain.attribution import MinedTx
from fencepost.domain.fees import FeeQuote
from fencepost.domain.ids import Address, TxHash, parse_tx_hash
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.transaction import Call, SignedTx
from fencepost.domain.transaction_state import Receipt
from fencepost.errors import (
    ChainSilent,
    ChainUnusable,
    InsufficientFunds,
    RpcError,
    RpcRefused,
    RpcUnavailable,
    TypeNotSupported,
    WouldRevert,
    WrongChain,
)

_log = logging.getLogger(__name__)

_PARALLEL: Final = 4  # requests of one kind in progress; measurements show no gain beyond this
_IDENTITY_INTERVAL_S: Final = 0.2  # between the starts of two checks
_MAX_IDENTITY_CALLERS: Final = 1_000_000  # per check: all that wait
_HEAD_BLOCK_TTL_S: Final = 0.1  # how long the response to `head` also answers `block`
_METHOD_NOT_FOUND: Final = -32601
_ALLOWANCE: Final = re.compile(r"gas required exceeds allowance:? \(?(\d{1,20})", re.IGNORECASE)
_TRANSFER_GAS: Final = 21_000
# Only methods that read may be repeated at a second node when the first is silent.
_READ_PREFIXES: Final = (
    "eth_get",
    "eth_call",
    "eth_estimateGas",
    "eth_feeHistory",
    "eth_gasPrice",
    "eth_blockNumber",
)
# Categories for which a lane gives the request up.
_PERMANENT_REJECTIONS: Final = frozenset({SendCategory.FATAL, SendCategory.TERMINALLY_STUCK})
_ACCEPTED: Final = SendCategory.ACCEPTED  # looked up once: nearly every send has this result
# Categories that describe the endpoint; all others describe the transaction.
_ENDPOINT_FAILURES: Final = frozenset({SendCategory.UNKNOWN, SendCategory.NODE_NOT_READY})


class _Head(NamedTuple):
    header: Header
    response: object  # the endpoint's response, which contains the block too


class EvmChain(Chain):
    """Read one chain and send to it; `patterns` are the operator's own rows for `node_errors.classify`."""

    def __init__(
        self,
        rpcs: Sequence[JsonRpc],
        *,
        patterns: Sequence[Row] = (),
        confirm_genesis: ConfirmGenesis | None = None,
        grace_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        on_hedge: Callable[[str], None] = lambda _endpoint: None,
        history_query: HistoryQuery = HistoryQuery(),  # noqa: B008 - a frozen value
    ) -> None:
        self._identity = ChainIdentity() if confirm_genesis is None else ChainIdentity(confirm_genesis)
        self._endpoints = Endpoints(
            rpcs, identity=self._identity, grace_s=grace_s, clock=clock, on_hedge=on_hedge
        )
        self._patterns = tuple(patterns)
        self._clock = clock
        self._newest: tuple[float, _Head] | None = None  # with the time at which it was read
        self._quotes = FeeQuotes(
            lambda: self._endpoints.read(lambda endpoint: quote(endpoint, history_query)), clock
        )
        self._send_batcher = RequestBatcher(self._send, max_items=MAX_BATCH, parallel=_PARALLEL)
        self._receipt_batcher = RequestBatcher(self._receipts, max_items=MAX_BATCH, parallel=_PARALLEL)
        self._identity_batcher = RequestBatcher(self._identify, max_items=_MAX_IDENTITY_CALLERS, parallel=1)
        self._identified_at_s: float | None = None  # by the loop's clock: when the last check started
        # The same request fetches the head.
        self._receipt_and_head_batcher = RequestBatcher(
            self._receipts_and_head, max_items=MAX_BATCH - 1, parallel=_PARALLEL
        )

    @property
    def chain_id(self) -> int:
        if not self._identity.chain_id:
            raise ChainUnusable("the chain id has not been verified yet")
        return self._identity.chain_id

    async def close(self) -> None:
        await self._quotes.aclose()
        await self._send_batcher.aclose()
        await self._receipt_batcher.aclose()
        await self._receipt_and_head_batcher.aclose()
        await self._identity_batcher.aclose()
        for endpoint in self._endpoints.all:
            await endpoint.rpc.close()

    async def reported_chain_id(self) -> int:
        """Return the chain id that the endpoints report; raise `ChainUnusable` if none answers, or if they differ."""
        reported = await self._ask_chain_ids()
        for endpoint, chain_id in reported[1:]:
            if chain_id != reported[0][1]:
                raise ChainUnusable(f"{endpoint.rpc.endpoint} is on chain {chain_id}, not {reported[0][1]}")
        return reported[0][1]

    async def verify_chain_id(self, expected: int) -> int:
        """Check that an endpoint serves the expected chain, and use none that serves another from now on.

        Endpoints that serve another chain are logged if one serves the right chain; otherwise raise `ChainUnusable`.
        0 accepts the chain that the endpoints report. An endpoint that doesn't answer now is checked before its first
        use.
        """
        self.expect(expected or await self.reported_chain_id())
        self._endpoints.logs_wrong_chains = False
        try:
            outcomes = await self._endpoints.ask_all(lambda endpoint: endpoint.rpc.connect())
        finally:
            self._endpoints.logs_wrong_chains = True
        wrong = [answer for _, answer in outcomes if isinstance(answer, WrongChain)]
        try:
            require_answers(outcomes)
        except RpcError as error:
            if wrong:
                self._identity.chain_id = 0
                raise ChainUnusable(str(wrong[0])) from wrong[0]
            raise ChainSilent(f"no RPC endpoint answers: {error}") from error
        for answer in wrong:
            _log.error(
                "endpoint disabled, the node starts with the others; check chains.NAME.rpc_urls: %s", answer
            )
        return self.chain_id

    def expect(self, chain_id: int) -> None:
        """Use no endpoint that serves another chain than this one."""
        self._identity.chain_id = chain_id
        for endpoint in self._endpoints.all:
            endpoint.rpc.reconnect()

    async def _ask_chain_ids(self) -> list[tuple[Endpoint, int]]:
        async def ask(endpoint: Endpoint) -> int:
            return await reported_chain_id(endpoint.rpc.endpoint, endpoint.rpc.call)

        try:
            return require_answers(await self._endpoints.ask_all(ask))
        except RpcError as error:
            raise ChainSilent(f"no RPC endpoint answers: {error}") from error

    @property
    def silent_for_s(self) -> float:
        return self._endpoints.silent_for_s

    @property
    def endpoints(self) -> Endpoints:
        """Return the endpoints, for the metrics of each."""
        return self._endpoints

    async def check_identity(self) -> None:
        await self._identity_batcher.ask([None])

    async def _identify(self, callers: Sequence[None]) -> Sequence[None]:
        """Identify the endpoints for callers whose reads were all made before this check started."""
        loop = asyncio.get_running_loop()
        if self._identified_at_s is not None:
            await asyncio.sleep(self._identified_at_s + _IDENTITY_INTERVAL_S - loop.time())
        self._identified_at_s = loop.time()
        await self._endpoints.identify_again()
        return callers

    async def send(self, txs: Sequence[SignedTx]) -> Sequence[SendResult]:
        return await self._send_batcher.ask(txs) if txs else []

    async def _send(self, txs: Sequence[SignedTx]) -> Sequence[SendResult]:
        calls = [("eth_sendRawTransaction", [f"0x{tx.raw.hex()}"]) for tx in txs]
        undecided: dict[Endpoint, list[SendResult]] = {}  # results of endpoints without a usable response

        async def ask(endpoint: Endpoint) -> list[SendResult]:
            response = await endpoint.rpc.batch(calls)
            results = [self._send_result(tx, answer) for tx, answer in zip(txs, response, strict=True)]
            final = [
                index for index, result in enumerate(results) if result.category in _PERMANENT_REJECTIONS
            ]
            if final and self._identity.chain_id:
                await _verify_endpoint(endpoint)
                again = await endpoint.rpc.batch([calls[index] for index in final])
                for index, answer in zip(final, again, strict=True):
                    response[index], results[index] = answer, self._send_result(txs[index], answer)
            if all(
                isinstance(answer, RpcError) and result.category in _ENDPOINT_FAILURES
                for answer, result in zip(response, results, strict=True)
            ):
                undecided[endpoint] = results
                raise response[0]  # no usable response: the endpoint backs off
            return results

        outcomes = await self._endpoints.ask_all(ask, is_send=True)
        by_endpoint = [
            (undecided.get(endpoint) or [self._classify_error(answer)] * len(txs))
            if isinstance(answer, RpcError)
            else answer
            for endpoint, answer in outcomes
        ]
        return [merge(results) for results in zip(*by_endpoint, strict=True)]

    def _send_result(self, tx: SignedTx, answer: object) -> SendResult:
        if answer == tx.hash:
            return SendResult(_ACCEPTED, returned_hash=tx.hash)
        if isinstance(answer, RpcError):
            return self._classify_error(answer)
        try:
            returned = parse_tx_hash(answer) if isinstance(answer, str) else None
        except ValueError:
            returned = None
        if returned == tx.hash:
            return SendResult(SendCategory.ACCEPTED, returned_hash=returned)
        return SendResult(
            SendCategory.UNKNOWN,
            message=f"the endpoint returned {returned or 'no hash'}",
            returned_hash=returned,
        )

    def _classify_error(self, error: RpcError) -> SendResult:
        text, code = str(error), None
        if isinstance(error, RpcRefused):
            code = error.rpc_code
            # Some nodes put a generic message into `message` and the reason into `data`.
            if isinstance(error.data, str) and not error.data.startswith("0x"):
                text = f"{text}: {error.data}"
        return classify(text, rpc_code=code, extra=self._patterns)

    async def nonce(self, address: Address, tag: Literal["latest", "pending"]) -> int:
        async def ask(endpoint: Endpoint) -> int:
            return decoding.quantity(
                await endpoint.rpc.call("eth_getTransactionCount", [address, tag]), of="nonce"
            )

        return consensus_value([nonce for _, nonce in require_answers(await self._endpoints.ask_all(ask))])

    async def nonce_at(self, address: Address, number: int) -> int | None:
        """Ask all endpoints: an archive node among them may have a state that the others have pruned."""

        async def ask(endpoint: Endpoint) -> int:
            response = await endpoint.rpc.call("eth_getTransactionCount", [address, hex(number)])
            return decoding.quantity(response, of="nonce")

        try:
            return consensus_value(
                [nonce for _, nonce in require_answers(await self._endpoints.ask_all(ask))]
            )
        except RpcRefused:
            return None

    async def transactions_of(self, address: Address, number: int) -> Sequence[MinedTx] | None:
        async def ask(endpoint: Endpoint) -> list[MinedTx] | None:
            response = await endpoint.rpc.call("eth_getBlockByNumber", [hex(number), True])
            if response is None:
                return None
            return mined_transactions.transactions_of(response, sender=address, chain_id=self.chain_id)

        return await self._endpoints.read(ask)

    async def balance_wei(self, address: Address) -> int:
        async def ask(endpoint: Endpoint) -> int:
            return decoding.quantity(
                await endpoint.rpc.call("eth_getBalance", [address, "latest"]), of="balance"
            )

        return await self._endpoints.read(ask)

    async def receipts(self, hashes: Sequence[TxHash]) -> Sequence[Receipt | None]:
        """Return the receipts; None if every endpoint was reached and none of them has the receipt."""
        if not hashes:
            return []
        return receipts.usable(await self._receipt_batcher.ask(hashes))

    async def _receipts(self, hashes: Sequence[TxHash]) -> Sequence[Found]:
        found = await self._endpoints.read(lambda endpoint: receipts.ask(endpoint, hashes))
        missing = [
            tx_hash
            for tx_hash, receipt in zip(hashes, found, strict=True)
            if not isinstance(receipt, Receipt)
        ]
        if not missing or len(self._endpoints.all) == 1:
            return found
        outcomes = await self._endpoints.ask_all(lambda endpoint: receipts.ask(endpoint, missing))
        found_by_others: dict[TxHash, Receipt | RpcError] = {}
        for _, response in outcomes:
            for tx_hash, receipt in zip(missing, receipts.each(response, len(missing)), strict=True):
                if receipt is not None and not isinstance(found_by_others.get(tx_hash), Receipt):
                    found_by_others[tx_hash] = receipt
        return [
            receipt if isinstance(receipt, Receipt) else found_by_others.get(tx_hash)
            for tx_hash, receipt in zip(hashes, found, strict=True)
        ]

    async def receipts_and_head(self, hashes: Sequence[TxHash]) -> tuple[Sequence[Receipt | None], Header]:
        """Send one request to every healthy endpoint: any receipt counts, and the head of the best endpoint."""
        if not hashes:
            return [], await self.head()
        results = await self._receipt_and_head_batcher.ask(hashes)
        return receipts.usable([found for found, _ in results]), results[0][1]

    async def _receipts_and_head(self, hashes: Sequence[TxHash]) -> Sequence[tuple[Found, Header]]:
        calls = [*receipts.calls(hashes), _head_call("latest")]

        async def ask(endpoint: Endpoint) -> tuple[list[Found], _Head]:
            *response, newest = await endpoint.rpc.batch(calls)
            head = _head(newest, "latest")
            return [receipts.read(endpoint, *pair) for pair in zip(hashes, response, strict=True)], head

        answers = require_answers(await self._endpoints.ask_all(ask))
        head = self._best_head({endpoint: head for endpoint, (_, head) in answers})
        by_tx = zip(*(found for _, (found, _) in answers), strict=True)
        return [(receipts.best_of(found), head) for found in by_tx]

    async def knows(self, hashes: Sequence[TxHash]) -> Sequence[bool]:
        if not hashes:
            return []

        async def ask(endpoint: Endpoint) -> list[bool]:
            response = await endpoint.batch([("eth_getTransactionByHash", [tx_hash]) for tx_hash in hashes])
            return [item is not None for item in response]

        by_tx = [known for _, known in require_answers(await self._endpoints.ask_all(ask))]
        return [any(known) for known in zip(*by_tx, strict=True)]

    async def head(self, tag: BlockTag = "latest") -> Header:
        async def ask(endpoint: Endpoint) -> _Head:
            return _head(await endpoint.rpc.call(*_head_call(tag)), tag)

        if tag != "latest":
            return (await self._endpoints.read(ask)).header
        # Ask all endpoints, because their heads determine their order.
        return self._best_head(dict(require_answers(await self._endpoints.ask_all(ask))))

    def _best_head(self, heads: Mapping[Endpoint, _Head]) -> Header:
        for endpoint, head in heads.items():
            endpoint.head = head.header.number
        best = heads[self._endpoints.best_first(list(heads))[0]]
        self._newest = (self._clock(), best)
        return best.header

    async def block(self, number: int) -> Block | None:
        """Return the block; reuse the response of the last `head`, because callers fetch the block of a new head next."""
        newest, self._newest = self._newest, None
        if newest is not None:
            read_at_s, head = newest
            if head.header.number == number and self._clock() - read_at_s < _HEAD_BLOCK_TTL_S:
                return decoding.block(head.response, head.header)

        async def ask(endpoint: Endpoint) -> Block | None:
            response = await endpoint.rpc.call("eth_getBlockByNumber", [hex(number), False])
            return None if response is None else decoding.block(response, decoding.header(response))

        return await self._endpoints.read(ask)

    async def block_receipts(self, number: int) -> Sequence[Receipt] | None:
        """Return all receipts of a block with one call; None if the endpoint lacks the method or the block."""

        async def ask(endpoint: Endpoint) -> list[Receipt] | None:
            if not endpoint.has_block_receipts:
                return None
            try:
                response = await endpoint.rpc.call("eth_getBlockReceipts", [hex(number)])
            except RpcRefused as error:
                if not _lacks_method(error):
                    raise
                endpoint.has_block_receipts = False
                return None
            if response is None:
                return None
            if not isinstance(response, list):
                raise RpcUnavailable("malformed answer: the receipts are not a list")
            return [receipt for receipt in map(decoding.receipt, response) if receipt is not None]

        return await self._endpoints.read(ask)

    async def estimate_gas(self, sender: Address, call: Call) -> int:
        wanted = [decoding.call_object(sender, call)]

        async def ask(endpoint: Endpoint) -> int | WouldRevert | RpcRefused:
            try:
                response = await endpoint.rpc.call("eth_estimateGas", wanted)
            except RpcRefused as error:
                if not self._identity.chain_id:
                    return self._verdict(error, call)
            else:
                return decoding.quantity(response, of="gas")
            await _verify_endpoint(endpoint)
            try:
                return decoding.quantity(await endpoint.rpc.call("eth_estimateGas", wanted), of="gas")
            except RpcRefused as error:
                return self._verdict(error, call)

        answer = await self._endpoints.read(ask)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _verdict(self, error: RpcRefused, call: Call) -> WouldRevert | RpcRefused:
        """Return what a refused dry run says about this very call; raise the refusal if it says nothing about it.

        "header not found" and the like say something about the endpoint: another one may answer.
        """
        allowance = _ALLOWANCE.search(str(error))
        if (
            allowance is not None and int(allowance[1]) < _TRANSFER_GAS
        ):  # what the balance pays for, not what it takes
            return InsufficientFunds(str(error), rpc_code=error.rpc_code, data=error.data)
        if (reason := refusal_reason(str(error), rpc_code=error.rpc_code, data=error.data)) is not None:
            return WouldRevert(reason)
        category = self._classify_error(error).category
        if category is SendCategory.INSUFFICIENT_FUNDS:
            return InsufficientFunds(str(error), rpc_code=error.rpc_code, data=error.data)
        if category is SendCategory.TYPE_NOT_SUPPORTED and call.access_list:
            return TypeNotSupported(str(error), rpc_code=error.rpc_code, data=error.data)
        raise error

    async def survey(
        self, address: Address | None, hashes: Sequence[TxHash], *, timeout_s: float
    ) -> Sequence[EndpointReport]:
        return await survey(self._endpoints.all, address, hashes, timeout_s=timeout_s)

    async def quote_fees(self) -> FeeQuote:
        return await self._quotes.now()

    async def revert_reason(self, tx_hash: TxHash) -> str | None:
        """Replay the transaction for its revert reason. Failures do not affect the health of an endpoint without old state."""
        return await self._endpoints.read_untracked(lambda endpoint: _replay_reason(endpoint, tx_hash))

    async def passthrough(self, method: str, params: Sequence[Any], *, bytes_max: int) -> msgspec.Raw:
        """Pass a caller's own call to an endpoint; return the result undecoded, or raise its error as `RpcRefused`.

        Methods are unknown here, so only those that certainly read are repeated at a second endpoint.
        """
        nodes_max = len(self._endpoints.all) if method.startswith(_READ_PREFIXES) else 1
        return await self._endpoints.ask_untracked(
            lambda endpoint: endpoint.rpc.call_raw(method, params, bytes_max=bytes_max), nodes_max=nodes_max
        )


async def _verify_endpoint(endpoint: Endpoint) -> None:
    """Raise `WrongChain` if a new connection shows that the endpoint now serves another chain."""
    endpoint.rpc.reconnect()
    await endpoint.rpc.connect()


def _head_call(tag: BlockTag) -> tuple[str, Sequence[Any]]:
    return "eth_getBlockByNumber", [tag, False]


def _head(response: object, tag: BlockTag) -> _Head:
    if isinstance(response, RpcError):
        raise response
    if response is None:
        raise RpcRefused(f"the endpoint has no {tag} block yet")
    return _Head(decoding.header(response), response)


async def _replay_reason(endpoint: Endpoint, tx_hash: TxHash) -> str | None:
    replay = decoding.replay_object(await endpoint.rpc.call("eth_getTransactionByHash", [tx_hash]))
    if replay is None:
        return None
    call, number = replay
    # It ran on a state between that of the parent block and that of its block, so try both; only archive nodes are sure
    # to have them.
    for at in (max(number - 1, 0), number):
        try:
            await endpoint.rpc.call("eth_call", [call, hex(at)])
        except RpcRefused as error:
            reason = refusal_reason(str(error), rpc_code=error.rpc_code, data=error.data)
            if reason is not None:
                return reason
    return None


def _lacks_method(error: RpcRefused) -> bool:
    text = str(error).lower()
    return error.rpc_code == _METHOD_NOT_FOUND or "not supported" in text or "does not exist" in text

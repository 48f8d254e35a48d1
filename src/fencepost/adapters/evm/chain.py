"""The `Chain` port over the nodes of one EVM chain.

Contract, beyond the port's
- A send goes to every healthy endpoint once and at the same time; what they say is merged (`merge.py`). A hash that
  isn't the one computed before the send is `UNKNOWN`: under load, nodes have answered with another nonce's hash.
- Sends of several callers travel together, and so do look-ups of receipts (`together.py`); each caller gets its own
  results, and a receipt that can't be read fails only those who asked for it.
- Whether the nodes know a transaction, and the receipt one of them lacks, is asked of all healthy endpoints: "nobody
  has it" must not rest on the word of one node that is behind, because a nonce that is consumed while no receipt is
  found looks like a stranger's work. Other reads go to the best endpoint.
- A quote serves all signers for a second (`quotes.py`).
- `verify_chain_id` comes first; before it, `chain_id` has no value.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from fencepost.adapters.evm import answers, receipts
from fencepost.adapters.evm.endpoints import Endpoint, Endpoints, answers_of, typical
from fencepost.adapters.evm.merge import merge
from fencepost.adapters.evm.node_errors import Row, classify
from fencepost.adapters.evm.quotes import Quotes, quote
from fencepost.adapters.evm.receipts import Found
from fencepost.adapters.evm.revert import refusal_reason
from fencepost.adapters.evm.rpc import BATCH_MAX, JsonRpc
from fencepost.adapters.evm.together import Together
from fencepost.application.ports import Block, BlockTag, Chain, Header
from fencepost.domain.ids import Address, TxHash, parse_tx_hash
from fencepost.domain.managed import Receipt
from fencepost.domain.send import SendCategory, SendResult
from fencepost.domain.transaction import Call, Fees, SignedTx
from fencepost.errors import (
    ChainUnusable,
    InsufficientFunds,
    RpcError,
    RpcRefused,
    RpcUnavailable,
    WouldRevert,
)

_PARALLEL: Final = 4  # requests under way of one kind; more gain nothing where it was measured
_HEAD_SERVES_S: Final = 0.1  # how long the head's own answer is its block, if that is what is asked for next
_METHOD_NOT_FOUND: Final = -32601
# What only reads may be asked of a second node when the first is silent.
_READS: Final = (
    "eth_get",
    "eth_call",
    "eth_estimateGas",
    "eth_feeHistory",
    "eth_gasPrice",
    "eth_blockNumber",
)
_ACCEPTED: Final = SendCategory.ACCEPTED  # found once: nearly every send is answered so
# What a node that failed as a whole may have meant; anything else it says is about the transaction.
_ABOUT_THE_NODE: Final = frozenset({SendCategory.UNKNOWN, SendCategory.NODE_NOT_READY})


class _Head(NamedTuple):
    header: Header
    said: object  # the node's answer, which tells its block as well


class EvmChain(Chain):
    """`patterns` are the operator's own rows for `node_errors.classify`."""

    def __init__(
        self,
        rpcs: Sequence[JsonRpc],
        *,
        patterns: Sequence[Row] = (),
        grace_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoints = Endpoints(rpcs, grace_s=grace_s, clock=clock)
        self._patterns = tuple(patterns)
        self._clock = clock
        self._newest: tuple[float, _Head] | None = None  # and when it was seen
        self._quotes = Quotes(lambda: self._endpoints.read(quote), clock)
        self._sending = Together(self._send, most=BATCH_MAX, parallel=_PARALLEL)
        self._looking_up = Together(self._receipts, most=BATCH_MAX, parallel=_PARALLEL)
        # The head is asked for in the same request.
        self._looking = Together(self._receipts_and_head, most=BATCH_MAX - 1, parallel=_PARALLEL)

    @property
    def chain_id(self) -> int:
        if not self._endpoints.chain_id:
            raise ChainUnusable("the chain id has not been verified yet")
        return self._endpoints.chain_id

    async def close(self) -> None:
        await self._quotes.aclose()
        await self._sending.aclose()
        await self._looking_up.aclose()
        await self._looking.aclose()
        for endpoint in self._endpoints.all:
            await endpoint.rpc.close()

    async def verify_chain_id(self, expected: int) -> int:
        """Every endpoint that answers must name the expected id, or, with 0, the same one; that one is adopted.

        An endpoint that doesn't answer now is asked again before its first use.
        """

        async def ask(endpoint: Endpoint) -> int:
            return answers.quantity(await endpoint.rpc.call("eth_chainId"), of="chain id")

        try:
            named = answers_of(await self._endpoints.ask_all(ask))
        except RpcError as error:
            raise ChainUnusable(f"no RPC endpoint answers: {error}") from error
        wanted = expected or named[0][1]
        for endpoint, chain_id in named:
            if chain_id != wanted:
                raise ChainUnusable(f"{endpoint.rpc.endpoint} is on chain {chain_id}, not {wanted}")
            endpoint.verified = True
        self._endpoints.chain_id = wanted
        return wanted

    async def send(self, txs: Sequence[SignedTx]) -> Sequence[SendResult]:
        return await self._sending.ask(txs) if txs else []

    async def _send(self, txs: Sequence[SignedTx]) -> Sequence[SendResult]:
        calls = [("eth_sendRawTransaction", [f"0x{tx.raw.hex()}"]) for tx in txs]

        async def ask(endpoint: Endpoint) -> list[SendResult]:
            said = await endpoint.rpc.batch(calls)
            results = [self._send_result(tx, answer) for tx, answer in zip(txs, said, strict=True)]
            if all(
                isinstance(answer, RpcError) and result.category in _ABOUT_THE_NODE
                for answer, result in zip(said, results, strict=True)
            ):
                raise said[0]  # not one usable answer: the endpoint rests
            return results

        settled = await self._endpoints.ask_all(ask)
        by_endpoint = [
            [self._refusal(answer)] * len(txs) if isinstance(answer, RpcError) else answer
            for _, answer in settled
        ]
        return [merge(results) for results in zip(*by_endpoint, strict=True)]

    def _send_result(self, tx: SignedTx, answer: object) -> SendResult:
        if answer == tx.hash:
            return SendResult(_ACCEPTED, returned_hash=tx.hash)
        if isinstance(answer, RpcError):
            return self._refusal(answer)
        try:
            returned = parse_tx_hash(answer) if isinstance(answer, str) else None
        except ValueError:
            returned = None
        if returned == tx.hash:
            return SendResult(SendCategory.ACCEPTED, returned_hash=returned)
        return SendResult(
            SendCategory.UNKNOWN, message=f"the node answered {returned or 'no hash'}", returned_hash=returned
        )

    def _refusal(self, error: RpcError) -> SendResult:
        text, code = str(error), None
        if isinstance(error, RpcRefused):
            code = error.rpc_code
            # Some nodes put the generic half into the message and the reason into the data.
            if isinstance(error.data, str) and not error.data.startswith("0x"):
                text = f"{text}: {error.data}"
        return classify(text, rpc_code=code, extra=self._patterns)

    async def nonce(self, address: Address, tag: Literal["latest", "pending"]) -> int:
        async def ask(endpoint: Endpoint) -> int:
            return answers.quantity(
                await endpoint.rpc.call("eth_getTransactionCount", [address, tag]), of="nonce"
            )

        return typical([nonce for _, nonce in answers_of(await self._endpoints.ask_all(ask))])

    async def balance_wei(self, address: Address) -> int:
        async def ask(endpoint: Endpoint) -> int:
            return answers.quantity(
                await endpoint.rpc.call("eth_getBalance", [address, "latest"]), of="balance"
            )

        return await self._endpoints.read(ask)

    async def receipts(self, hashes: Sequence[TxHash]) -> Sequence[Receipt | None]:
        """A receipt one node lacks is asked of all. None means that each of them was reached and has none."""
        if not hashes:
            return []
        return receipts.usable(await self._looking_up.ask(hashes))

    async def _receipts(self, hashes: Sequence[TxHash]) -> Sequence[Found]:
        found = await self._endpoints.read(lambda endpoint: receipts.ask(endpoint, hashes))
        missing = [
            tx_hash
            for tx_hash, receipt in zip(hashes, found, strict=True)
            if not isinstance(receipt, Receipt)
        ]
        if not missing or len(self._endpoints.all) == 1:
            return found
        settled = await self._endpoints.ask_all(lambda endpoint: receipts.ask(endpoint, missing))
        elsewhere: dict[TxHash, Receipt | RpcError] = {}
        for _, said in settled:
            for tx_hash, receipt in zip(missing, receipts.each(said, len(missing)), strict=True):
                if receipt is not None and not isinstance(elsewhere.get(tx_hash), Receipt):
                    elsewhere[tx_hash] = receipt
        return [
            receipt if isinstance(receipt, Receipt) else elsewhere.get(tx_hash)
            for tx_hash, receipt in zip(hashes, found, strict=True)
        ]

    async def receipts_and_head(self, hashes: Sequence[TxHash]) -> tuple[Sequence[Receipt | None], Header]:
        """One request to every healthy endpoint: a receipt that any of them has counts, and the best one's head."""
        if not hashes:
            return [], await self.head()
        seen = await self._looking.ask(hashes)
        return receipts.usable([found for found, _ in seen]), seen[0][1]

    async def _receipts_and_head(self, hashes: Sequence[TxHash]) -> Sequence[tuple[Found, Header]]:
        calls = [*receipts.calls(hashes), _head_call("latest")]

        async def ask(endpoint: Endpoint) -> tuple[list[Found], _Head]:
            *said, newest = await endpoint.rpc.batch(calls)
            head = _head(newest, "latest")
            return [receipts.read(endpoint, *pair) for pair in zip(hashes, said, strict=True)], head

        answered = answers_of(await self._endpoints.ask_all(ask))
        head = self._best_head({endpoint: head for endpoint, (_, head) in answered})
        everywhere = zip(*(found for _, (found, _) in answered), strict=True)
        return [(receipts.best_of(found), head) for found in everywhere]

    async def knows(self, hashes: Sequence[TxHash]) -> Sequence[bool]:
        if not hashes:
            return []

        async def ask(endpoint: Endpoint) -> list[bool]:
            said = await endpoint.batch([("eth_getTransactionByHash", [tx_hash]) for tx_hash in hashes])
            return [item is not None for item in said]

        everywhere = [known for _, known in answers_of(await self._endpoints.ask_all(ask))]
        return [any(known) for known in zip(*everywhere, strict=True)]

    async def head(self, tag: BlockTag = "latest") -> Header:
        async def ask(endpoint: Endpoint) -> _Head:
            return _head(await endpoint.rpc.call(*_head_call(tag)), tag)

        if tag != "latest":
            return (await self._endpoints.read(ask)).header
        # All are asked, because this is where their order comes from.
        return self._best_head(dict(answers_of(await self._endpoints.ask_all(ask))))

    def _best_head(self, heads: Mapping[Endpoint, _Head]) -> Header:
        for endpoint, head in heads.items():
            endpoint.head = head.header.number
        best = heads[self._endpoints.best_first(list(heads))[0]]
        self._newest = (self._clock(), best)
        return best.header

    async def block(self, number: int) -> Block | None:
        """The block that `head` has just seen isn't asked for again: who sees a new head wants its block next."""
        newest, self._newest = self._newest, None
        if newest is not None:
            seen_s, head = newest
            if head.header.number == number and self._clock() - seen_s < _HEAD_SERVES_S:
                return answers.block(head.said, head.header)

        async def ask(endpoint: Endpoint) -> Block | None:
            said = await endpoint.rpc.call("eth_getBlockByNumber", [hex(number), False])
            return None if said is None else answers.block(said, answers.header(said))

        return await self._endpoints.read(ask)

    async def block_receipts(self, number: int) -> Sequence[Receipt] | None:
        """All receipts of a block in one call; None where the node can't, or hasn't the block: ask by hash instead."""

        async def ask(endpoint: Endpoint) -> list[Receipt] | None:
            if not endpoint.has_block_receipts:
                return None
            try:
                said = await endpoint.rpc.call("eth_getBlockReceipts", [hex(number)])
            except RpcRefused as error:
                if not _lacks_method(error):
                    raise
                endpoint.has_block_receipts = False
                return None
            if said is None:
                return None
            if not isinstance(said, list):
                raise RpcUnavailable("malformed answer: the receipts are not a list")
            return [receipt for receipt in map(answers.receipt, said) if receipt is not None]

        return await self._endpoints.read(ask)

    async def estimate_gas(self, sender: Address, call: Call) -> int:
        async def ask(endpoint: Endpoint) -> int:
            said = await endpoint.rpc.call("eth_estimateGas", [answers.call_object(sender, call)])
            return answers.quantity(said, of="gas")

        try:
            return await self._endpoints.read(ask)
        except RpcRefused as error:
            if (reason := refusal_reason(str(error), rpc_code=error.rpc_code, data=error.data)) is not None:
                raise WouldRevert(reason) from error
            if self._refusal(error).category is SendCategory.INSUFFICIENT_FUNDS:
                raise InsufficientFunds(str(error), rpc_code=error.rpc_code, data=error.data) from error
            raise

    async def quote_fees(self) -> Fees:
        return await self._quotes.now()

    async def revert_reason(self, tx_hash: TxHash) -> str | None:
        return await self._endpoints.read(lambda endpoint: _replayed(endpoint, tx_hash))

    async def passthrough(self, method: str, params: Sequence[Any]) -> Any:
        """A call of somebody else's, as it is: the node's result, or its error as `RpcRefused`.

        What the method does is not known here, so only what is sure to be a read goes to a second node.
        """
        nodes_max = len(self._endpoints.all) if method.startswith(_READS) else 1
        return await self._endpoints.pass_on(
            lambda endpoint: endpoint.rpc.call(method, params), nodes_max=nodes_max
        )


def _head_call(tag: BlockTag) -> tuple[str, Sequence[Any]]:
    return "eth_getBlockByNumber", [tag, False]


def _head(said: object, tag: BlockTag) -> _Head:
    if isinstance(said, RpcError):
        raise said
    if said is None:
        raise RpcRefused(f"the node has no {tag} block yet")
    return _Head(answers.header(said), said)


async def _replayed(endpoint: Endpoint, tx_hash: TxHash) -> str | None:
    replay = answers.replay_object(await endpoint.rpc.call("eth_getTransactionByHash", [tx_hash]))
    if replay is None:
        return None
    call, number = replay
    # The state it ran on lies between its parent's and its block's, so each is tried; archive nodes aside, either may
    # be gone.
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

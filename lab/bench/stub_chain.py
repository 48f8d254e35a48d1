"""A stub chain that answers immediately: it accepts everything, mines every few milliseconds, and checks nothing.

It is a separate process, so that its work does not count as the node's. `python -m lab.bench.stub_chain` prints its URL
and serves until standard input ends. `stub_sends` returns when each transaction first arrived, on the machine's monotonic
clock.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any, cast

import msgspec
import uvloop

from fencepost.adapters.evm.keccak import keccak256

BLOCK_TIME_S = 0.02
CHAIN_ID = 31337


class StubChain:
    """Blocks and pool of the stub."""

    def __init__(self) -> None:
        self.blocks: list[list[str]] = [[]]
        self.block_of: dict[str, int] = {}
        self.pool: list[str] = []
        self.sent_at_s: dict[str, float] = {}

    def mine(self) -> None:
        if self.pool:
            number = len(self.blocks)
            self.blocks.append(self.pool)
            for tx_hash in self.pool:
                self.block_of[tx_hash] = number
            self.pool = []

    def answer(self, method: str, params: list[Any]) -> Any:  # noqa: C901, PLR0912 - a table of methods
        match method:
            case "eth_sendRawTransaction":
                tx_hash = "0x" + keccak256(bytes.fromhex(params[0][2:])).hex()
                self.pool.append(tx_hash)
                self.sent_at_s.setdefault(tx_hash, time.monotonic())
                return tx_hash
            case "eth_getTransactionReceipt":
                return self._receipt(params[0])
            case "eth_getBlockReceipts":
                number = int(params[0], 16)
                return (
                    [self._receipt(tx_hash) for tx_hash in self.blocks[number]]
                    if number < len(self.blocks)
                    else None
                )
            case "eth_getBlockByNumber":
                return self._block(params[0])
            case "eth_chainId":
                return hex(CHAIN_ID)
            case "eth_blockNumber":
                return hex(len(self.blocks) - 1)
            case "eth_getTransactionCount":
                return "0x0"
            case "eth_estimateGas":
                return "0x5208"
            case "eth_getBalance":
                return hex(10**24)
            case "eth_feeHistory":
                return {
                    "baseFeePerGas": ["0x3b9aca00"] * 2,
                    "reward": [["0x3b9aca00"]],
                    "gasUsedRatio": [0.5],
                }
            case "eth_gasPrice":
                return "0x3b9aca00"
            case "stub_sends":
                return self.sent_at_s
            case _:
                raise KeyError(method)

    def _receipt(self, tx_hash: str) -> Any:
        number = self.block_of.get(tx_hash)
        if number is None:
            return None
        return {
            "transactionHash": tx_hash,
            "blockNumber": hex(number),
            "blockHash": block_hash(number),
            "status": "0x1",
            "gasUsed": "0x5208",
        }

    def _block(self, tag: str) -> Any:
        number = len(self.blocks) - 1 if not tag.startswith("0x") else int(tag, 16)
        if number >= len(self.blocks):
            return None
        return {
            "number": hex(number),
            "hash": block_hash(number),
            "parentHash": block_hash(number - 1),
            "baseFeePerGas": "0x3b9aca00",
            "timestamp": hex(1_700_000_000 + number),
            "transactions": self.blocks[number],
        }


def block_hash(number: int) -> str:
    return f"0x{number + 1:064x}"


class _Protocol(asyncio.Protocol):
    """The part of HTTP that a JSON-RPC client with kept connections needs."""

    def __init__(self, chain: StubChain) -> None:
        self._chain = chain
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # a stream server creates no other kind

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head_end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:head_end].lower()
            marker = head.find(b"content-length:")
            length = int(head[marker + 15 :].split(b"\r\n", 1)[0]) if marker >= 0 else 0
            if len(self._buffer) < head_end + 4 + length:
                return
            body = self._buffer[head_end + 4 : head_end + 4 + length]
            self._buffer = self._buffer[head_end + 4 + length :]
            content = msgspec.json.encode(self._answers(msgspec.json.decode(body)))
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                % (len(content), content)
            )

    def _answers(self, asked: Any) -> Any:
        return [self._one(call) for call in asked] if isinstance(asked, list) else self._one(asked)

    def _one(self, call: Any) -> Any:
        try:
            return {
                "jsonrpc": "2.0",
                "id": call["id"],
                "result": self._chain.answer(call["method"], call["params"]),
            }
        except KeyError as error:
            return {
                "jsonrpc": "2.0",
                "id": call["id"],
                "error": {"code": -32601, "message": f"no method {error}"},
            }


async def _serve() -> None:
    chain = StubChain()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Protocol(chain), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sys.stdout.write(json.dumps({"url": f"http://127.0.0.1:{port}"}) + "\n")
    sys.stdout.flush()
    ended = asyncio.Event()
    loop.add_reader(0, lambda: None if os.read(0, 4096) else ended.set())
    while not ended.is_set():
        chain.mine()
        await asyncio.sleep(BLOCK_TIME_S)
    server.close()


if __name__ == "__main__":
    uvloop.run(_serve())

"""The least that any transaction manager must do, as a baseline for the benchmark. Not for use.

It decodes and stores requests, stores nonces and signed bytes, sends them, and stores the receipts. It has no API, lease,
token or journal, one process, no retry and no recovery after a crash.

`python -m lab.bench.bare_pipeline` reads an `Order` as one line, prints `ready`, starts with the next line, prints `done`,
and ends when its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID, uuid4

import asyncpg
import msgspec
import uvloop

from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.adapters.postgres.group_commit import GroupCommit
from fencepost.adapters.signers.local import LocalKeys
from fencepost.domain.ids import Address
from fencepost.domain.transaction import Call, Fees, SignedTx, UnsignedTx
from lab.bench.bare_sender import OrderedSender, Receipts

MODULE: Final = "lab.bench.bare_pipeline"
READY, DONE = "ready", "done"

_GWEI = 10**9
_CONNECTIONS = 4
_MAX_RECEIPTS_PER_COMMIT = 500

_TABLE = (
    "CREATE TABLE bare (id uuid PRIMARY KEY, signer text, request_id text, payload jsonb, nonce bigint, raw bytea,"
    " hash text, receipt json, UNIQUE (signer, request_id)) WITH (fillfactor = 30)"
)
_TAKE = "INSERT INTO bare (id, signer, request_id, payload) SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::jsonb[])"
_GIVE = (
    "UPDATE bare b SET nonce = c.nonce, raw = c.raw, hash = c.hash"
    " FROM unnest($1::uuid[], $2::bigint[], $3::bytea[], $4::text[]) c (id, nonce, raw, hash) WHERE b.id = c.id"
)
_END = "UPDATE bare b SET receipt = c.receipt FROM unnest($1::uuid[], $2::json[]) c (id, receipt) WHERE b.id = c.id"


class Payload(msgspec.Struct):
    to: Address
    value: str
    gas: int


class Request(msgspec.Struct):
    signer: Address
    requestId: str  # noqa: N815 - the name in the JSON body
    payload: Payload


class Body(msgspec.Struct):
    requests: list[Request]


class Order(msgspec.Struct):
    """What the process gets: servers, keys and request bodies."""

    dsn: str
    rpc_url: str
    chain_id: int
    keys: list[str]
    bodies: list[str]


class Pipeline:
    """Store, sign, send and finish requests."""

    def __init__(self, order: Order, pool: asyncpg.Pool[asyncpg.Record], rpc: JsonRpc) -> None:
        self._chain_id = order.chain_id
        self._keys = LocalKeys.from_hex(order.keys)
        self._nonces = dict.fromkeys(self._keys.addresses(), 0)
        self._pool = pool
        self._rpc = rpc
        self._sender = OrderedSender(rpc)
        self._ids: dict[str, UUID] = {}  # by hash
        self._ends = GroupCommit(self._end, max_items=_MAX_RECEIPTS_PER_COMMIT, parallel=1)

    async def run(self, bodies: Sequence[bytes], count: int) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(Receipts(self._rpc, count, self._ends.submit_all).fetch())
            group.create_task(self._sender.run())
            for body in bodies:
                requests = msgspec.json.decode(body, type=Body).requests
                for request, tx in zip(requests, await self._take(requests), strict=True):
                    self._sender.submit(request.signer, tx)
            self._sender.close()

    async def _take(self, requests: Sequence[Request]) -> Sequence[SignedTx]:
        ids = [uuid4() for _ in requests]
        await self._pool.execute(
            _TAKE,
            ids,
            [request.signer for request in requests],
            [request.requestId for request in requests],
            [msgspec.json.encode(request.payload).decode() for request in requests],
        )
        wanted = [self._unsigned(request) for request in requests]
        signed = await self._sign(requests, wanted)
        await self._pool.execute(
            _GIVE, ids, [tx.nonce for tx in wanted], [tx.raw for tx in signed], [tx.hash for tx in signed]
        )
        self._ids.update(zip([tx.hash for tx in signed], ids, strict=True))
        return signed

    async def _sign(self, requests: Sequence[Request], wanted: Sequence[UnsignedTx]) -> list[SignedTx]:
        by_signer = [(request.signer, [tx]) for request, tx in zip(requests, wanted, strict=True)]
        signed: list[SignedTx] = []
        for several in await self._keys.sign_each(by_signer):
            if isinstance(several, BaseException):
                raise several
            signed += several
        return signed

    def _unsigned(self, request: Request) -> UnsignedTx:
        nonce = self._nonces[request.signer]
        self._nonces[request.signer] = nonce + 1
        call = Call(to=request.payload.to, value_wei=int(request.payload.value))
        return UnsignedTx(self._chain_id, nonce, call, request.payload.gas, Fees(10 * _GWEI, _GWEI))

    async def _end(self, receipts: Sequence[dict[str, Any]]) -> Sequence[UUID]:
        ids = [self._ids.pop(receipt["transactionHash"]) for receipt in receipts]
        await self._pool.execute(_END, ids, [msgspec.json.encode(receipt).decode() for receipt in receipts])
        return ids


async def main() -> None:
    order = msgspec.json.decode(sys.stdin.readline(), type=Order)
    bodies = [body.encode() for body in order.bodies]
    count = sum(len(msgspec.json.decode(body, type=Body).requests) for body in bodies)
    rpc = JsonRpc(order.rpc_url, timeout_s=60)
    async with asyncpg.create_pool(order.dsn, min_size=_CONNECTIONS, max_size=_CONNECTIONS) as pool:
        await pool.execute(_TABLE)
        pipeline = Pipeline(order, pool, rpc)
        _say(READY)
        sys.stdin.readline()
        await pipeline.run(bodies, count)
        _say(DONE)
        sys.stdin.read()  # the benchmark reads the CPU time before it ends
    await rpc.close()


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(main())

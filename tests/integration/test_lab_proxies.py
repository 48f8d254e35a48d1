"""The lab's proxies fail as specified: the effect happens or not, and the caller cannot know."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.adapters.signers.local import LocalKeys
from fencepost.dev.node_process import NodeSpec, node_spec
from fencepost.dev.postgres import EmbeddedPostgres
from fencepost.domain.transaction import Call, Fees, UnsignedTx
from fencepost.errors import RpcError, Unready
from fixtures.anvil import TestChain
from lab.chaos.failpoints import ORDER_FILE
from lab.chaos.fork_server import IS_SUPPORTED, open_fork_server
from lab.proxies.postgres_proxy import postgres_proxy
from lab.proxies.rpc_proxy import RpcFaults, SendRecord, rpc_proxy
from lab.proxies.shared_lock import SharedLock

LOST = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, asyncio.TimeoutError)


def through(dsn: str, port: int) -> str:
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{port}"))


async def test_a_write_with_a_dropped_answer_happened(postgres: EmbeddedPostgres, dsn: str) -> None:
    name = urlsplit(dsn).path
    tcp_dsn = urlunsplit(urlsplit(postgres.tcp_dsn)._replace(path=name))
    direct = await asyncpg.connect(tcp_dsn)
    await direct.execute("CREATE TABLE written (number int)")
    async with postgres_proxy(postgres.port) as wire:
        connection = await asyncpg.connect(through(tcp_dsn, wire.port))
        wire.inject("drop_answers")
        writing = asyncio.create_task(connection.execute("INSERT INTO written VALUES (1)"))
        for _ in range(500):
            if await direct.fetchval("SELECT count(*) FROM written"):
                break
            await asyncio.sleep(0.01)
        assert not writing.done()
        wire.heal()
        with pytest.raises(LOST):
            await writing
        assert await direct.fetchval("SELECT count(*) FROM written") == 1

        again = await asyncpg.connect(through(tcp_dsn, wire.port))
        wire.inject("black_hole")
        with pytest.raises(LOST):
            await again.execute("INSERT INTO written VALUES (2)", timeout=0.2)
        wire.inject("cut")
        with pytest.raises(LOST):
            await asyncpg.connect(through(tcp_dsn, wire.port), timeout=2)
    assert await direct.fetchval("SELECT count(*) FROM written") == 1
    await direct.close()


async def test_a_held_commit_is_done_but_not_visible_yet(postgres: EmbeddedPostgres, dsn: str) -> None:
    tcp_dsn = urlunsplit(urlsplit(postgres.tcp_dsn)._replace(path=urlsplit(dsn).path))
    direct = await asyncpg.connect(tcp_dsn)
    await direct.execute("CREATE TABLE written (number int)")
    async with postgres_proxy(postgres.port) as wire:
        connection = await asyncpg.connect(through(tcp_dsn, wire.port))
        insert = await connection.prepare("INSERT INTO written VALUES ($1)")
        pid = connection.get_server_pid()
        wire.inject("hold_commits")
        writing = asyncio.create_task(insert.fetch(1))
        written = "SELECT backend_xid IS NOT NULL FROM pg_stat_activity WHERE pid = $1"
        async with asyncio.timeout(30):
            while not await direct.fetchval(written, pid):  # noqa: ASYNC110 - another process's work
                await asyncio.sleep(0.01)
        assert await direct.fetchval("SELECT count(*) FROM written") == 0
        assert not writing.done()
        wire.heal()
        await writing
        assert wire.is_healthy
        assert await direct.fetchval("SELECT count(*) FROM written") == 1
        await connection.close()
    await direct.close()


async def test_an_exclusive_user_waits_for_those_inside_and_keeps_others_out() -> None:
    chain_lock = SharedLock()
    order: list[str] = []
    is_inside, may_leave = asyncio.Event(), asyncio.Event()

    async def ask(name: str) -> None:
        async with chain_lock.shared():
            order.append(f"{name} begins")
            is_inside.set()
            await may_leave.wait()
        order.append(f"{name} ends")

    async def change() -> None:
        async with chain_lock.exclusive():
            order.append("alone begins")
            await asyncio.sleep(0)
            order.append("alone ends")

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(ask("first"))
        await is_inside.wait()
        group.create_task(change())
        await asyncio.sleep(0)
        group.create_task(ask("second"))
        await asyncio.sleep(0)
        assert order == ["first begins"]
        may_leave.set()
    assert order[:4] == ["first begins", "first ends", "alone begins", "alone ends"]
    assert sorted(order[4:]) == ["second begins", "second ends"]


async def test_a_cancelled_wait_leaves_the_lock_free() -> None:
    chain_lock = SharedLock()
    async with chain_lock.shared():
        waiting = asyncio.create_task(_alone_for_ever(chain_lock))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with asyncio.timeout(30), chain_lock.exclusive():
        pass


async def _alone_for_ever(chain_lock: SharedLock) -> None:
    async with chain_lock.exclusive():
        await asyncio.Event().wait()


async def test_a_send_executed_and_then_failed_happened_and_is_recorded(anvil: TestChain) -> None:
    keys = LocalKeys.from_hex(["0x" + anvil.private_keys[-1].hex()])
    address = keys.addresses()[0]
    record = SendRecord()
    direct = JsonRpc(anvil.rpc_url)
    async with rpc_proxy(
        "one", anvil.rpc_url, record=record, rng=random.Random(1), chain_lock=SharedLock()
    ) as endpoint:
        rpc = JsonRpc(endpoint.url, timeout_s=5)
        nonce = int(await rpc.call("eth_getTransactionCount", [address, "pending"]), 16)
        tx = UnsignedTx(
            chain_id=anvil.chain_id,
            nonce=nonce,
            call=Call(to=address, value_wei=5),
            gas=21_000,
            fees=Fees(fee_cap_wei=10**11, tip_wei=10**9),
        )
        signed = (await keys.sign(address, [tx]))[0]
        endpoint.faults = RpcFaults(executed=1.0)
        with pytest.raises(RpcError):
            await rpc.call("eth_sendRawTransaction", [f"0x{signed.raw.hex()}"])
        endpoint.faults = RpcFaults(error=1.0)
        with pytest.raises(RpcError):
            await rpc.call("eth_chainId", [])
        endpoint.faults = RpcFaults(lie=7)
        lied = int(await rpc.call("eth_getTransactionCount", [address, "pending"]), 16)
        endpoint.heal()
        assert lied == int(await rpc.call("eth_getTransactionCount", [address, "pending"]), 16) + 7
        await rpc.close()
    assert await direct.call("eth_getTransactionByHash", [signed.hash]) is not None
    assert [(sent.tx.hash, sent.tx.nonce, sent.via) for sent in record.sent] == [(signed.hash, nonce, "one")]
    await direct.close()


async def test_a_lagging_endpoint_shows_an_older_chain(anvil: TestChain) -> None:
    await anvil.mine(6)
    async with rpc_proxy(
        "one", anvil.rpc_url, record=SendRecord(), rng=random.Random(1), chain_lock=SharedLock()
    ) as endpoint:
        rpc = JsonRpc(endpoint.url, timeout_s=5)
        endpoint.faults = RpcFaults(lag_blocks=3)
        behind = int(await rpc.call("eth_blockNumber", []), 16)
        latest = await rpc.call("eth_getBlockByNumber", ["latest", False])
        unseen = await rpc.call("eth_getBlockByNumber", [hex(behind + 3), False])
        endpoint.heal()
        head = int(await rpc.call("eth_blockNumber", []), 16)
        await rpc.close()
    assert behind <= head - 3
    assert int(latest["number"], 16) >= behind
    assert unseen is None


@pytest.mark.skipif(not IS_SUPPORTED, reason="processes are watched through pidfds, which only Linux has")
async def test_a_forked_node_is_its_own_process(dsn: str, anvil: TestChain, tmp_path: Path) -> None:
    key = f"0x{anvil.private_keys[0].hex()}"
    environ = {ORDER_FILE: str(tmp_path / "order")}

    def order(name: str, dsn: str) -> NodeSpec:
        log = tmp_path / f"{name}.log"
        return node_spec(
            name,
            dsn=dsn,
            rpc_url=anvil.rpc_url,
            private_keys=[key],
            settings={},
            log=log,
            more_environ=environ,
        )

    async with open_fork_server(tmp_path / "fork-server.log") as home:
        first, second = [await home.start(order(name, dsn)) for name in ("first", "second")]
        assert first.url != second.url
        assert first.process.pid != second.process.pid
        await first.kill()
        assert not first.is_alive
        with pytest.raises(ProcessLookupError):
            first.process.send_signal(0)
        assert second.process.returncode is None
        await second.stop()
        assert not second.is_alive
        with pytest.raises(Unready, match="node third did not start: fencepost: database"):
            await home.start(order("third", through(dsn, 1)))
        fourth = await home.start(order("fourth", dsn))
    async with asyncio.timeout(30):
        await fourth.process.wait()  # it exits with its nursery

"""The Redis schemes while Redis is away, has lost its data, or is another server."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from fencepost.dev.redis import EmbeddedRedis, embedded_redis
from fencepost.domain.ids import Signer
from fencepost.errors import HoldLost, NonceUnavailable
from fencepost.nonce import redis_scripts
from fencepost.nonce.port import NoncePort
from fencepost.nonce.redis_client import RedisClient, RedisDown
from fencepost.nonce.redis_full import RedisFullNonces
from fencepost.runtime.observer import NodeObserver
from integration.stage import until
from lab.proxies.relay import Relay
from nonce_lab import ALICE, BOB, HEAL_AFTER_S, NonceLab, give, tx_hash

PATIENCE_S = 2.0  # longer than any delay of a busy machine
PROBE_AFTER_S = 5.0
NOWHERE = "redis://127.0.0.1:1/0"


# ---- Redis away and back


async def test_the_loss_and_return_of_redis_are_each_reported_once(
    redis_relay: Relay, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    observer = NodeObserver("node-1")
    url = f"redis://127.0.0.1:{redis_relay.port}/0"
    link = RedisClient(url, timeout_s=PATIENCE_S, probe_interval_s=0.0, note=observer.note)
    await link.command("PING")
    redis_relay.cut()
    for _ in range(3):
        with pytest.raises(RedisDown):
            await link.command("PING")
    figures = observer.metrics.render().decode()
    assert "fencepost_redis_up 0.0" in figures
    assert "fencepost_redis_lost_total 1.0" in figures
    redis_relay.restore()
    assert await link.probe()
    await link.command("PING")
    assert [record.message for record in caplog.records] == ["redis_lost", "redis_found"]
    assert "fencepost_redis_up 1.0" in observer.metrics.render().decode()
    await link.close()


async def test_a_redis_that_has_forgotten_the_scripts_is_not_lost(redis_server: EmbeddedRedis) -> None:
    observer = NodeObserver("node-1")
    link = RedisClient(redis_server.url, timeout_s=PATIENCE_S, note=observer.note)
    generation = link.generation
    with pytest.raises(RedisDown, match="scripts are loaded again"):
        await link.command("EVALSHA", "0" * 40, 0)
    assert link.generation > generation  # so they are loaded again
    assert "fencepost_redis_lost_total 0.0" in observer.metrics.render().decode()
    await link.close()


@pytest.mark.parametrize("scheme", ["postgres+lock", "redis_issue", "redis_full"])
async def test_without_redis_postgresql_issues_nonces_and_redis_returns_automatically(
    lab: NonceLab, redis_relay: Relay, scheme: str
) -> None:
    port = await lab.open(scheme)
    assert await give(port, 3) == [0, 1, 2]
    redis_relay.cut()
    assert [await give(port) for _ in range(4)] == [[3], [4], [5], [6]]
    standing = [lab.links[0].is_up]
    redis_relay.restore()
    await port.tend_once()  # the next probe is not due yet
    standing.append(lab.links[0].is_up)
    lab.clock.advance(PROBE_AFTER_S + 1)
    await port.tend_once()
    standing.append(lab.links[0].is_up)
    assert standing == [False, False, True]
    assert await give(port, 2) == [7, 8]
    assert await give(port) == [9]


@pytest.mark.parametrize("scheme", ["redis_issue", "redis_full"])
async def test_an_emptied_redis_continues_above_the_database(
    lab: NonceLab, redis_server: EmbeddedRedis, scheme: str
) -> None:
    port = await lab.open(scheme)
    held = await port.allocate(ALICE, count=4, hold_for_s=60)
    await port.mark_recyclable(held[1])
    await port.tend_once()
    await redis_server.crash()
    assert await give(port, 2) == [1, 4]
    await port.mark_submitted(held[2], tx_hash(2))


async def test_redis_issue_skips_numbers_that_redis_issues_twice(lab: NonceLab) -> None:
    """A fail-over lost the last writes: the counter goes back, the primary key does not."""
    one, two = await lab.open("redis_issue"), await lab.open("redis_issue")
    assert await give(one, 5) == [0, 1, 2, 3, 4]
    await lab.link().command("SET", f"fencepost:nonce:next:{ALICE}", 2)
    assert await give(one, 2) == [5, 6]
    assert await give(two, 2) == [7, 8]


async def test_redis_issue_issues_a_skipped_number_after_a_delay(lab: NonceLab) -> None:
    port = await lab.open("redis_issue")
    await give(port)
    await lab.link().command("INCR", f"fencepost:nonce:next:{ALICE}")  # then that process died
    assert await give(port) == [2]
    assert await port.reclaim_expired(ALICE) == 0, "its caller may be about to use it"
    await lab.pass_time(HEAL_AFTER_S + 1)
    assert await port.reclaim_expired(ALICE) == 1
    assert await give(port, 2) == [1, 3]


async def test_redis_issue_issues_nothing_when_it_raises(
    lab: NonceLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = await lab.open("redis_issue")
    held = await port.allocate(ALICE, count=3, hold_for_s=60)
    await port.mark_recyclable(held[1])

    async def taken_ones(_signer: Signer, count: int) -> tuple[int, ...]:
        return (0, 50, 2)[:count]

    monkeypatch.setattr(port, "_issue", taken_ones)
    with pytest.raises(NonceUnavailable):
        await port.allocate(ALICE, count=5, hold_for_s=60)
    states = {row["nonce"]: row["state"] for row in await lab.slots(ALICE)}
    assert states == {0: "HELD", 1: "RELEASED", 2: "HELD", 50: "RELEASED"}
    monkeypatch.undo()
    assert await give(port) == [1], "it can be given again at once"


async def test_redis_issue_makes_no_duplicate_when_only_one_process_lacks_redis(lab: NonceLab) -> None:
    inside, cut_off = await lab.open("redis_issue"), await lab.open("redis_issue", redis_url=NOWHERE)

    async def caller(port: NoncePort) -> list[int]:
        return [nonce for _ in range(10) for nonce in await give(port)]

    given = await asyncio.gather(*[caller(port) for port in (inside, cut_off) for _ in range(8)])
    assert sorted(nonce for got in given for nonce in got) == list(range(160))


# ---- redis_full and its window


async def test_redis_full_loses_nothing_that_was_flushed(lab: NonceLab, redis_server: EmbeddedRedis) -> None:
    port, other = await lab.open("redis_full"), await lab.open("redis_full")
    await give(port, 3)
    await port.tend_once()
    await redis_server.crash()
    assert await give(other) == [3]


async def test_redis_full_issues_again_what_redis_lost_before_a_flush(
    lab: NonceLab, redis_server: EmbeddedRedis
) -> None:
    """The documented window of loss: as wide as the unflushed data."""
    port, other = await lab.open("redis_full"), await lab.open("redis_full")
    await give(port, 2)
    await port.tend_once()
    (lost,) = await port.allocate(ALICE, hold_for_s=60)
    await redis_server.crash()
    (again,) = await other.allocate(ALICE, hold_for_s=60)
    assert again.nonce == lost.nonce
    with pytest.raises(HoldLost):
        await port.mark_submitted(lost, tx_hash(1))


async def test_a_crashed_process_loses_nothing_of_redis_full(lab: NonceLab) -> None:
    await give(await lab.open("redis_full"), 3)  # never flushed by that process
    other = await lab.open("redis_full")
    assert await give(other) == [3]
    await other.tend_once()
    assert len(await lab.slots(ALICE)) == 4


async def test_redis_full_stores_a_mark_whose_hold_was_lost_with_redis(
    lab: NonceLab, redis_relay: Relay
) -> None:
    port = await lab.open("redis_full")
    (hold,) = await port.allocate(ALICE, hold_for_s=60)
    redis_relay.cut()
    await port.mark_submitted(hold, tx_hash(1))
    assert [(row["nonce"], row["state"]) for row in await lab.slots(ALICE)] == [(0, "SUBMITTED")]
    redis_relay.restore()
    lab.clock.advance(PROBE_AFTER_S + 1)
    await port.tend_once()
    assert await give(port) == [1], "Redis still had it as held"
    assert (await lab.slots(ALICE))[0]["state"] == "SUBMITTED"


async def test_redis_full_does_not_write_an_older_state_over_a_newer(lab: NonceLab) -> None:
    port = await lab.open("redis_full")
    assert isinstance(port, RedisFullNonces)
    (hold,) = await port.allocate(ALICE, hold_for_s=60)
    await port.tend_once()
    await port.mark_used(hold)
    await port.tend_once()
    await lab.link().command("HSET", f"fencepost:nonce:{{{ALICE}}}:slots", 0, f"1|HELD|{hold.token.hex}|0|")
    await lab.link().command("SADD", f"fencepost:nonce:{{{ALICE}}}:dirty", 0)
    await port.tend_once()
    assert [row["state"] for row in await lab.slots(ALICE)] == ["CONSUMED"]
    assert port._write_behind.rejected == 1


async def redis_epoch(lab: NonceLab) -> int:
    return int(
        await lab.pool.fetchval("SELECT redis_epoch FROM nonce_cursor WHERE signer = $1", ALICE.address)
    )


async def test_redis_full_stops_using_redis_in_every_process_when_one_lacks_it(lab: NonceLab) -> None:
    """Nonces issued from Redis are stored before any nonce is issued without it."""
    inside = await lab.open("redis_full", max_status_age_s=PATIENCE_S)
    cut_off = await lab.open("redis_full", redis_url=NOWHERE, max_status_age_s=PATIENCE_S)
    assert await give(inside, 3) == [0, 1, 2]
    assert await lab.slots(ALICE) == []
    alone = asyncio.create_task(give(cut_off))
    await until(lambda: redis_epoch(lab))
    await inside.tend_once()
    assert len(await lab.slots(ALICE)) == 3
    together = await asyncio.gather(alone, *[give(port) for port in (inside, cut_off) for _ in range(10)])
    assert sorted(nonce for got in together for nonce in got) == list(range(3, 24))


async def test_redis_full_learns_that_redis_is_off_before_it_issues_without_a_running_loop(
    lab: NonceLab,
) -> None:
    inside, cut_off = await lab.open("redis_full"), await lab.open("redis_full", redis_url=NOWHERE)
    (first, second) = await inside.allocate(ALICE, count=2, hold_for_s=60)
    await inside.tend_once()
    assert await give(cut_off) == [2]
    assert await give(inside) == [3]
    await cut_off.mark_submitted(first, tx_hash(1))
    await inside.mark_used(second, tx_hash(2))
    assert [row["state"] for row in await lab.slots(ALICE)] == ["SUBMITTED", "CONSUMED", "HELD", "HELD"]


async def test_redis_full_returns_to_redis_when_every_process_reaches_it(lab: NonceLab) -> None:
    inside, cut_off = await lab.open("redis_full"), await lab.open("redis_full", redis_url=NOWHERE)
    held = await inside.allocate(ALICE, count=2, hold_for_s=60)
    await inside.tend_once()
    await give(cut_off)
    await cut_off.mark_recyclable(held[0])
    await lab.pass_time(60)
    assert await give(inside, 2) == [0, 3], "as PostgreSQL knew it, not as Redis had it"
    assert await lab.link().command("HGET", f"fencepost:nonce:{{{ALICE}}}:meta", "next") == "4"


async def test_redis_full_does_not_reclaim_what_other_processes_may_hold_in_redis(lab: NonceLab) -> None:
    inside, cut_off = await lab.open("redis_full"), await lab.open("redis_full", redis_url=NOWHERE)
    (hold,) = await inside.allocate(ALICE, hold_for_s=5)
    await inside.tend_once()
    await inside.mark_submitted(hold, tx_hash(1))  # only Redis has it
    await lab.pass_time(6)
    await cut_off.allocate(BOB, hold_for_s=60)  # it has noticed that Redis is gone
    assert await cut_off.reclaim_expired(ALICE) == 0
    assert await redis_epoch(lab) == 0, "reclaiming alone does not switch Redis off"
    assert await inside.reclaim_expired(ALICE) == 0


async def test_a_process_joins_redis_full_while_another_issues(lab: NonceLab) -> None:
    one, two = await lab.open("redis_full"), await lab.open("redis_full")
    await give(one)
    joined = asyncio.Event()

    async def caller() -> list[int]:
        got: list[int] = []
        while not joined.is_set():
            got += await give(one)
        return got

    async def joiner() -> list[int]:
        got = await give(two, 5)
        joined.set()
        return got

    given = await asyncio.gather(joiner(), *[caller() for _ in range(16)])
    assert sorted(nonce for got in given for nonce in got) == list(range(1, 1 + sum(map(len, given))))
    assert await redis_epoch(lab) == 0


async def test_an_idle_process_notices_that_redis_was_replaced(
    lab: NonceLab, redis_server: EmbeddedRedis, redis_relay: Relay, tmp_path: Path
) -> None:
    """A replica that stopped following before the last writes: PostgreSQL has them, and no process issues them again."""
    idle = await lab.open("redis_full", max_status_age_s=60)
    await give(idle)
    async with embedded_redis(tmp_path / "replica") as replica:
        link = lab.link(replica.url)
        await link.command("REPLICAOF", "127.0.0.1", redis_server.port)

        async def follows() -> bool:
            return bool(await link.command("EXISTS", f"fencepost:nonce:{{{ALICE}}}:meta"))

        await until(follows)
        await link.command("REPLICAOF", "NO", "ONE")
        busy = await lab.open("redis_full")
        await give(busy, 5)
        await busy.tend_once()
        redis_relay.cut()
        redis_relay.server_port = replica.port
        redis_relay.restore()
        # Other processes have loaded their scripts for other signers, and the idle process will open a new connection.
        await lab.link().pipeline([("SCRIPT", "LOAD", script.text) for script in redis_scripts.ALL])
        await lab.links[0]._client.connection_pool.disconnect()
        assert await give(idle) == [6]

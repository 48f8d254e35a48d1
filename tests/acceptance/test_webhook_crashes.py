"""A node is killed while it delivers webhooks: another one continues, and the receiver misses no event."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from aiohttp import web

from fencepost.client import AsyncClient, verify_webhook
from fencepost.dev.node_process import NodeProcess, start_node
from fixtures.anvil import TestChain
from fixtures.core import eventually
from fixtures.receiver import Received, Receiver, open_receiver

SETTINGS = {
    "lease.duration": "4s",
    "lease.renew_interval": "500ms",
    "chains.default.poll_interval": "50ms",
    "confirmations.required": "0",
    "events.webhook.allow_private": "true",
    "events.webhook.retry_delays": "0s,100ms,200ms,400ms",
}
COUNT = 12
MINE_KEYS = 2


async def start(name: str, dsn: str, chain: TestChain, log: Path) -> NodeProcess:
    return await start_node(
        name,
        dsn=dsn,
        rpc_url=chain.rpc_url,
        private_keys=["0x" + key.hex() for key in chain.private_keys[:MINE_KEYS]],
        settings=SETTINGS,
        log=log,
    )


async def test_a_killed_node_skips_nothing(dsn: str, anvil: TestChain, tmp_path: Path) -> None:
    is_open = asyncio.Event()

    async def hold(_received: Received) -> web.StreamResponse:
        """Keep requests open until the first node is dead: it dies with events sent and no answer."""
        await is_open.wait()
        return web.Response()

    async with open_receiver() as receiver:
        first = await start("first", dsn, anvil, tmp_path / "first.log")
        second: NodeProcess | None = None
        try:
            async with AsyncClient(first.url) as client:
                signers = [one.address async for one in client.signers()]
                made = await client.create_subscription(receiver.url, start="beginning", ordered="signer")
                receiver.answer = hold
                for number in range(COUNT):
                    await client.send(
                        signer=signers[number % len(signers)],
                        to="0x" + "5e" * 20,
                        value_wei=1,
                        request_id=f"order-{number}",
                        wait="finished",
                    )

                async def is_sending() -> bool:
                    return bool(receiver.received)

                await eventually(is_sending)
            second = await start("second", dsn, anvil, tmp_path / "second.log")
            await first.kill()
            is_open.set()
            async with AsyncClient(second.url) as client:
                expected: list[str] = []

                async def all_arrived() -> bool:
                    page = await asyncio.to_thread(_events, second.url)
                    expected[:] = [event["id"] for event in page]
                    done = sum(event["type"] == "tx.confirmed" for event in page)
                    return done == COUNT and set(expected) <= {
                        one.headers["webhook-id"] for one in receiver.received
                    }

                await eventually(all_arrived)
                stored = await client.subscription(made.id)
            assert stored.state == "active"
        finally:
            for node in (first, second):
                if node is not None and node.is_alive:
                    await node.stop()
    assert made.secret
    seen = _sequences(receiver, made.secret)
    assert len(seen) == len(signers)
    assert all(sequence == sorted(sequence) for sequence in seen.values())
    for log in (tmp_path / "first.log", tmp_path / "second.log"):
        assert made.secret not in log.read_text()


def _sequences(receiver: Receiver, secret: str) -> dict[str, list[int]]:
    """Return the sequence numbers of each signer in the order of their first delivery."""
    seen: dict[str, list[int]] = {}
    for one in receiver.received:
        event = verify_webhook(one.body, one.headers, secret, tolerance_s=3_600)
        if event.signer is None:  # node.joined and node.left have no order with others
            continue
        sequence = seen.setdefault(event.signer, [])
        if int(event.sequence) not in sequence:
            sequence.append(int(event.sequence))
    return seen


def _events(url: str) -> list[dict[str, str]]:
    from urllib.request import urlopen

    with urlopen(f"{url}/api/v1/events?limit=100") as response:  # noqa: S310 - a node on loopback
        page = json.load(response)
    found: list[dict[str, str]] = page["items"]
    while page["items"]:
        with urlopen(f"{url}/api/v1/events?limit=100&after={page['next']}") as response:  # noqa: S310 - see above
            page = json.load(response)
        found += page["items"]
    return found

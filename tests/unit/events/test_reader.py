"""A program that embeds a node iterates over its events."""

from __future__ import annotations

import asyncio

import pytest

from fencepost.errors import InvalidRequest
from fencepost.testing import open_fencepost

SINK = "0x" + "5e" * 20


async def test_the_facade_yields_events_and_continues_after_an_id() -> None:
    async with open_fencepost() as fencepost, asyncio.timeout(30):
        tx_id = await fencepost.create(signer=fencepost.addresses[0], to=SINK, value_wei=1)
        seen = []
        async for event in fencepost.events():
            seen.append(event)
            if event.type == "tx.confirmed":
                break
        assert seen[0].type == "tx.queued"
        assert {event.tx_id for event in seen} == {tx_id}
        again = []
        async for event in fencepost.events(after=seen[1].id):
            again.append(event)
            if event.type == "tx.confirmed":
                break
        assert again == seen[2:]


async def test_bad_arguments_are_rejected() -> None:
    async with open_fencepost() as fencepost:
        with pytest.raises(InvalidRequest):
            await anext(fencepost.events(after="yesterday"))
        with pytest.raises(InvalidRequest):
            await anext(fencepost.events(types=["tx.unheard"]))

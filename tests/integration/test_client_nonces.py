"""The nonce service through both clients and the command line, over good and bad networks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fencepost.client import NoncesOut, NonceStatusOut, errors
from fixtures.anvil import TestChain
from fixtures.client import Caller, caller_of, line_to, node_at, run_fencepost
from fixtures.core import eventually

KINDS = ["blocking", "awaited"]
RECEIVER = "0x" + "5e" * 20
SENDER = 5  # an account of the chain without a key at the node
ONE, OTHER = "0x" + "11" * 32, "0x" + "22" * 32


@pytest_asyncio.fixture
async def node_url(dsn: str, anvil: TestChain, tmp_path: Path) -> AsyncIterator[str]:
    async with node_at(dsn, anvil, tmp_path / "node.log", nonce_service__enabled="true") as url:
        yield url


@pytest_asyncio.fixture
async def sender(anvil: TestChain) -> str:
    return str((await anvil.call("eth_accounts"))[SENDER]).lower()


@pytest_asyncio.fixture(params=KINDS)
async def call(request: pytest.FixtureRequest, node_url: str) -> AsyncIterator[Caller]:
    async with caller_of(request.param, node_url) as caller:
        yield caller


async def test_nonces_are_held_marked_closed_and_issued_again(
    call: Caller, anvil: TestChain, sender: str
) -> None:
    begin = await anvil.nonce(sender)
    held: NoncesOut = await call("allocate_nonces", sender, count=3, hold_for_s=60, chain_id=31337)
    assert (held.signer, held.chain_id) == (sender, 31337)
    sent, done, back = held.items
    assert [sent.nonce, done.nonce, back.nonce] == [begin, begin + 1, begin + 2]
    tx = {"from": sender, "to": RECEIVER, "value": "0x1", "nonce": hex(sent.nonce)}
    tx_hash = str(await anvil.call("eth_sendTransaction", tx))
    await call("mark_submitted", sender, sent.nonce, token=sent.token, tx_hash=tx_hash)
    assert await call("mark_used", sender, done.nonce, token=done.token) == done
    assert await call("mark_recyclable", sender, back.nonce, token=back.token) == back

    async def closed() -> bool:
        status: NonceStatusOut = await call("nonce_status", sender)
        return status.consumed == 2

    await eventually(closed)
    status: NonceStatusOut = await call("nonce_status", sender, chain_id=31337)
    assert (status.held, status.submitted, status.released) == (0, 0, 1)
    assert status.first_gap == back.nonce
    (again,) = (await call("allocate_nonces", sender)).items
    assert again.nonce == back.nonce
    assert again.token != back.token


async def test_rejections_are_raised_as_exceptions_with_their_codes(call: Caller, sender: str) -> None:
    (held,) = (await call("allocate_nonces", sender)).items
    await call("mark_submitted", sender, held.nonce, token=held.token, tx_hash=ONE)
    refused: list[tuple[str, str, dict[str, Any]]] = [
        ("hold_lost", "mark_used", {"token": "0" * 32}),
        ("nonce_conflict", "mark_submitted", {"token": held.token, "tx_hash": OTHER}),
        ("nonce_conflict", "mark_used", {"token": held.token, "tx_hash": OTHER}),
        ("nonce_conflict", "mark_recyclable", {"token": held.token}),
    ]
    for code, name, more in refused:
        with pytest.raises(errors.WrongState) as wrong:
            await call(name, sender, held.nonce, **more)
        assert wrong.value.code == code, name
    with pytest.raises(errors.BadRequest):
        await call("allocate_nonces", sender, count=0)
    with pytest.raises(errors.BadRequest):
        await call("mark_used", sender, -1, token=held.token)
    with pytest.raises(errors.NotFound):
        await call("nonce_status", RECEIVER)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_allocation_with_a_lost_answer_is_reported_and_a_mark_is_repeated(
    kind: str, node_url: str, sender: str
) -> None:
    async with line_to(node_url) as (line, url), caller_of(kind, url) as call:
        line.lose_answers(1)
        with pytest.raises(errors.Unreachable) as lost:
            await call("allocate_nonces", sender, count=2)
        assert lost.value.sent
        assert (await call("nonce_status", sender)).held == 2

        submitted, used, recyclable = (await call("allocate_nonces", sender, count=3)).items
        line.lose_answers(2)
        await call("mark_submitted", sender, submitted.nonce, token=submitted.token, tx_hash=ONE)
        assert line._answers_to_lose == 0
        line.lose_answers(2)
        await call("mark_used", sender, used.nonce, token=used.token)
        assert line._answers_to_lose == 0
        line.lose_answers(2)
        await call("mark_recyclable", sender, recyclable.nonce, token=recyclable.token)
        assert line._answers_to_lose == 0
        status: NonceStatusOut = await call("nonce_status", sender)
        assert (status.held, status.submitted, status.consumed, status.released) == (2, 1, 1, 1)


async def test_the_command_holds_and_marks_nonces(node_url: str, sender: str, tmp_path: Path) -> None:
    async def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        status, out, shown = await run_fencepost(
            "nonce", *arguments, env={"FENCEPOST_URL": node_url}, cwd=tmp_path
        )
        assert status == code, (status, out, shown)
        return out, shown

    out, _ = await run("allocate", sender, "--count=3", "--hold-for=1m", "--json")
    first, second, third = json.loads(out)["items"]

    def hold(item: dict[str, Any]) -> tuple[str, ...]:
        return sender, str(item["nonce"]), "--token", item["token"]

    out, _ = await run("submitted", *hold(first), "--hash", ONE)
    assert out == f"nonce {first['nonce']}: submitted\n"
    out, _ = await run("used", *hold(second), "--hash", OTHER, "--json")
    assert json.loads(out) == second
    await run("recyclable", *hold(third))
    out, _ = await run("status", sender)
    shown = {line[:11].strip(): line[11:].strip() for line in out.splitlines()}
    assert (shown["held"], shown["submitted"], shown["consumed"]) == ("0, 0 of them expired", "1", "1")
    assert shown["released"] == f"1; {third['nonce']} is allocated next"
    out, _ = await run("allocate", sender)
    assert out.splitlines()[1].split()[0] == str(third["nonce"])

    _, reason_text = await run("recyclable", *hold(first), code=1)
    assert "Another transaction uses the nonce" in reason_text
    await run("used", sender, str(second["nonce"]), "--token", "0" * 32, code=1)
    await run("status", RECEIVER, "--json", code=1)
    await run("used", sender, "0", code=2)
    await run("used", sender, "0", "--token=mine", code=2)
    await run("allocate", sender, "--count=0", code=2)

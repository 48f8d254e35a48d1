"""Both clients against a real node in its own process, over good and bad networks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from msgspec import UNSET

from fencepost import errors as core_errors
from fencepost.adapters.evm.keccak import keccak256
from fencepost.application.api_keys import Scope, mint
from fencepost.client import TxOut, errors
from fixtures.anvil import TestChain
from fixtures.client import Caller, caller_of, line_to, node_at, run_fencepost
from fixtures.core import eventually

KINDS = ["blocking", "awaited"]
RECEIVER = "0x" + "5e" * 20


@pytest_asyncio.fixture
async def node_url(dsn: str, anvil: TestChain, tmp_path: Path) -> AsyncIterator[str]:
    async with node_at(dsn, anvil, tmp_path / "node.log") as url:
        yield url


@pytest_asyncio.fixture(params=KINDS)
async def call(request: pytest.FixtureRequest, node_url: str) -> AsyncIterator[Caller]:
    async with caller_of(request.param, node_url) as caller:
        yield caller


async def first_signer(call: Caller) -> str:
    return str((await call("signers"))[0].address)


async def test_a_transaction_is_mined_and_found_by_each_of_its_names(call: Caller, anvil: TestChain) -> None:
    signer = await first_signer(call)
    tx: TxOut = await call(
        "send", signer=signer, to=RECEIVER, value_wei=7, request_id="order-7", tags=["a"], wait="confirmed"
    )
    assert tx.state == "CONFIRMED"
    assert tx.hash is not None
    assert int(await anvil.call("eth_getBalance", RECEIVER, "latest"), 16) >= 7
    same = [
        await call("get", tx.tx_id),
        await call("wait", tx.tx_id),
        await call("by_request", signer, "order-7"),
        await call("by_hash", tx.hash),
        await call("send", signer=signer, to=RECEIVER, value_wei=7, request_id="order-7", tags=["a"]),
    ]
    assert {one.tx_id for one in same} == {tx.tx_id}
    shown: TxOut = await call("get", tx.tx_id, include=["attempts", "history", "receipt"])
    assert isinstance(shown.attempts, list)
    assert [one.hash for one in shown.attempts] == [tx.hash]

    async def is_listed() -> bool:
        """No older completion can follow any more, for any user of the server."""
        return bool((await call("completions")).items)

    await eventually(is_listed)
    ended = await call("completions")
    assert [one.tx_id for one in ended.items] == [tx.tx_id]
    assert (await call("completions", ended.next)).items == []


async def test_a_method_is_called_with_python_arguments(call: Caller, anvil: TestChain) -> None:
    signer = await first_signer(call)
    tx: TxOut = await call(
        "send", signer=signer, to=RECEIVER, method="transfer(address,uint256)", args=[signer, 2**200],
        gas=100_000, wait="confirmed",
    )  # fmt: skip
    sent = await anvil.call("eth_getTransactionByHash", tx.hash)
    selector = keccak256(b"transfer(address,uint256)")[:4].hex()
    assert sent["input"] == f"0x{selector}{signer[2:]:0>64}{2**200:064x}"


async def test_pages_are_read_to_the_end(call: Caller) -> None:
    signer = await first_signer(call)
    sent = await call(
        "send_many",
        [{"signer": signer, "to": RECEIVER, "request_id": f"r{number}"} for number in range(7)],
    )
    assert [one.request_id for one in sent] == [f"r{number}" for number in range(7)]
    listed = await call("iterate", signer=[signer], page_size=3)
    assert [one.tx_id for one in listed] == [one.tx_id for one in reversed(sent)]
    assert await call("iterate", state=["FAILED"]) == []
    assert len(await call("signers", page_size=2)) == 3
    await asyncio.gather(*(call("wait", one.tx_id) for one in sent))


async def test_one_bad_item_does_not_affect_the_others(call: Caller) -> None:
    signer = await first_signer(call)
    good, bad, other = await call(
        "send_many",
        [
            {"signer": signer, "to": RECEIVER, "request_id": "good"},
            {"signer": signer, "to": "0x12", "request_id": "bad"},
            {"signer": "0x" + "11" * 20, "to": RECEIVER, "request_id": "other"},
        ],
    )
    assert isinstance(good, TxOut)
    assert isinstance(bad, errors.BadRequest)
    assert (bad.field, bad.request_id) == ("payload.to", "bad")
    assert isinstance(other, core_errors.UnknownSigner)


async def test_problems_are_raised_as_exceptions_with_code_and_field(call: Caller) -> None:
    signer = await first_signer(call)
    tx: TxOut = await call("send", signer=signer, to=RECEIVER, request_id="one", wait="confirmed")
    with pytest.raises(errors.RequestConflict) as conflict:
        await call("send", signer=signer, to=RECEIVER, value_wei=1, request_id="one")
    assert isinstance(conflict.value, core_errors.RequestConflict)
    assert conflict.value.tx_id == tx.tx_id
    with pytest.raises(errors.BadRequest) as bad:
        await call("send", signer=signer, to=RECEIVER, gas=2**70)
    assert (bad.value.code, bad.value.field) == ("number_out_of_range", "payload.gas")
    with pytest.raises(errors.UnknownSigner):
        await call("send", signer="0x" + "11" * 20, to=RECEIVER)
    for unknown in ("nonsense", "0b6c39a4-86a0-4ae1-a3d2-3a3b6a2a0c11", "../signers", "a/b?c"):
        with pytest.raises(errors.NotFound):
            await call("get", unknown)
    with pytest.raises(errors.WrongState) as ended:
        await call("cancel", tx.tx_id)
    assert ended.value.code == "tx_ended"


async def test_every_operator_command_is_available(call: Caller, anvil: TestChain) -> None:
    signer = await first_signer(call)
    assert (await call("pause_signer", signer, reason="maintenance", by="ada")).signer.state == "PAUSED"
    with pytest.raises(errors.WrongState):
        await call("pause_signer", signer)
    tx: TxOut = await call("send", signer=signer, to=RECEIVER)
    with pytest.raises(errors.NotReached) as not_yet:
        await call("wait", tx.tx_id, timeout_s=0.3)
    assert not_yet.value.tx.state == "QUEUED"
    assert (await call("suspend", tx.tx_id)).tx.state == "SUSPENDED"
    assert (await call("resume", tx.tx_id)).tx.state == "QUEUED"
    assert (await call("cancel", tx.tx_id, reason="not needed")).tx.state == "CANCELLED"
    assert (await call("wait", tx.tx_id)).error == "not needed"
    assert (await call("drain_signer", signer)).drained is True
    assert (await call("resume_signer", signer)).signer.state == "ACTIVE"
    assert (await call("protect_signer", signer, reason="strange")).signer.state == "PROTECT"
    with pytest.raises(errors.SignerProtected):
        await call("send", signer=signer, to=RECEIVER)
    with pytest.raises(errors.BadRequest):
        await call("unprotect_signer", signer, decision="keep")
    done = await call("unprotect_signer", signer, decision="keep", reason="it was nothing")
    assert done.signer.state == "ACTIVE"
    assert (await call("command", done.command_id)).outcome == done.outcome

    await anvil.call("evm_setAutomine", False)
    stuck: TxOut = await call("send", signer=signer, to=RECEIVER, wait="submitted")
    assert "again" in (await call("resubmit", stuck.tx_id)).outcome
    assert "attempt 2 pays" in (await call("bump", stuck.tx_id)).outcome
    await anvil.mine()
    assert (await call("wait", stuck.tx_id)).state == "CONFIRMED"


async def test_the_node_describes_itself(call: Caller) -> None:
    signer = await first_signer(call)
    await call("send", signer=signer, to=RECEIVER, wait="confirmed")
    assert [node.name for node in await call("nodes")] == ["node-1"]
    assert (await call("version")).chain_ids == [31337]
    seen = await call("signer", signer)
    assert seen.chain_nonces is UNSET  # only for operator keys, unless api.expose_nonce is on
    assert int(seen.balance_wei) > 0


# ---- bad networks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("request_id", ["mine", None])
async def test_lost_answers_make_no_second_transaction(
    kind: str, request_id: str | None, node_url: str, anvil: TestChain
) -> None:
    async with line_to(node_url) as (line, url), caller_of(kind, url) as call:
        signer = await first_signer(call)
        line.lose_answers(3)
        tx: TxOut = await call(
            "send", signer=signer, to=RECEIVER, value_wei=1, request_id=request_id, wait="confirmed"
        )
        assert line._answers_to_lose == 0
        assert tx.state == "CONFIRMED"
        assert [one.tx_id for one in await call("iterate")] == [tx.tx_id]
        assert await anvil.nonce(signer) == 1

        line.lose_answers(2)
        asked = [{"signer": signer, "to": RECEIVER} for _ in range(20)]
        sent = await call("send_many", asked)
        assert line._answers_to_lose == 0
        assert len({one.tx_id for one in sent}) == 20
        assert len(await call("iterate", page_size=7)) == 21
        await asyncio.gather(*(call("wait", one.tx_id) for one in sent))
        assert await anvil.nonce(signer) == 21


@pytest.mark.parametrize("kind", KINDS)
async def test_a_command_whose_answer_is_lost_is_reported_and_not_repeated(
    kind: str, node_url: str, dsn: str
) -> None:
    async with line_to(node_url) as (line, url), caller_of(kind, url) as call:
        signer = await first_signer(call)
        line.lose_answers(1)
        with pytest.raises(errors.Unreachable) as lost:
            await call("pause_signer", signer, reason="once")
        assert lost.value.sent
        assert (await call("signer", signer)).state == "PAUSED"
    connection = await asyncpg.connect(dsn)
    try:
        assert await connection.fetchval("SELECT count(*) FROM audit WHERE action = 'signer.pause'") == 1
    finally:
        await connection.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_an_unreachable_node_is_skipped_and_an_error_is_raised_when_all_are(
    kind: str, node_url: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        dead = f"http://127.0.0.1:{free.getsockname()[1]}"
    async with caller_of(kind, [dead, node_url]) as call:
        signer = await first_signer(call)
        assert (await call("send", signer=signer, to=RECEIVER, wait="confirmed")).state == "CONFIRMED"
        assert (await call("pause_signer", signer)).done
    async with caller_of(kind, dead, retry_for_s=0.5) as call:
        with pytest.raises(errors.Unreachable) as unreachable:
            await call("send", signer=signer, to=RECEIVER, request_id="kept")
        assert not unreachable.value.sent
        assert unreachable.value.request_id == "kept"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_silent_server_counts_as_a_timeout(kind: str) -> None:
    hung_up = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            pass
        writer.close()
        hung_up.set()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, caller_of(kind, url, retry_for_s=0, response_timeout_s=0.2) as call:
        with pytest.raises(errors.Unreachable, match="no response in time"):
            await call("version")
        async with asyncio.timeout(30):
            await hung_up.wait()


# ---- keys


async def make_key(dsn: str, *scopes: Scope, **more: Any) -> str:
    arguments = [f"--scope={scope}" for scope in scopes] + [
        f"--{name}={value}" for name, value in more.items()
    ]
    status, out, shown = await run_fencepost("keys", "create", "tester", "--dsn", dsn, *arguments)
    assert status == 0, shown
    return out.strip()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_key_grants_its_scopes_and_the_client_waits_for_its_rate(
    kind: str, node_url: str, dsn: str
) -> None:
    reads = await make_key(dsn, Scope.TX_READ)
    async with caller_of(kind, node_url, api_key=reads) as call:
        signer = await first_signer(call)
        with pytest.raises(errors.NotPermitted) as refused:
            await call("send", signer=signer, to=RECEIVER)
        assert refused.value.code == "scope_missing"
    slow = await make_key(dsn, Scope.TX_WRITE, rate=2)
    async with caller_of(kind, node_url, api_key=slow) as call:
        for number in range(4):
            await call("send", signer=signer, to=RECEIVER, request_id=str(number))
    _, unknown_key = mint("unknown", scopes=frozenset({Scope.ADMIN}))
    async with caller_of(kind, node_url, api_key=unknown_key) as call:
        with pytest.raises(errors.NotAuthenticated):
            await call("nodes")

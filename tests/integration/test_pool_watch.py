"""A real endpoint forgets a transaction: the lane sends it again long before `resubmit.interval`."""

from __future__ import annotations

import pytest

from fixtures.anvil import TestChain
from fixtures.api import open_api
from fixtures.core import eventually


async def test_a_transaction_that_its_endpoint_forgot_is_sent_again(
    dsn: str, anvil: TestChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.application.pool_watch.POOL_CHECK_INTERVAL_S", 0.5)
    await anvil.call("evm_setAutomine", False)
    async with open_api(dsn, anvil, resubmit__interval="1h") as api:
        tx = (await api.post("/tx", api.transfer("1"), wait="submitted", timeout=60)).json
        await anvil.call("anvil_dropAllTransactions")

        async def is_back() -> bool:
            return await anvil.nonce(api.signers[0], "pending") == 1

        await eventually(is_back)
        await anvil.mine()
        ended = await api.get(f"/tx/{tx['txId']}", wait="confirmed", timeout=60)
        assert ended.json["state"] == "CONFIRMED"

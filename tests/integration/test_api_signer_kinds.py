"""A nonce-only signer and a managed signer at the same node: each endpoint of the API knows which is which."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from fixtures.anvil import TestChain
from fixtures.api import ApiServer, open_api
from integration.rpc_calls import fault, raw_of, result


@pytest_asyncio.fixture
async def giving(dsn: str, anvil: TestChain) -> AsyncIterator[ApiServer]:
    async with open_api(dsn, anvil, keys=2, nonce_service__enabled="true") as opened:
        yield opened


async def test_a_nonce_only_signer_with_a_lease_sends_raw_transactions(
    giving: ApiServer, anvil: TestChain
) -> None:
    """The kind of the signer decides, even when its key is at this node."""
    for number in (0, 7):
        key = anvil.private_keys[number]
        sender = str((await anvil.call("eth_accounts"))[number]).lower()
        held = await giving.post(f"/nonces/{sender}")
        assert held.status == 200, held
        nonce = held.json["items"][0]["nonce"]
        sent = await result(giving, "eth_sendRawTransaction", raw_of(key, nonce=nonce))
        assert str(sent).startswith("0x")
    assert (await giving.post("/tx", giving.transfer(signer=giving.signers[1]))).status == 202
    said = await fault(giving, "eth_sendRawTransaction", raw_of(anvil.private_keys[1]))
    assert said[2]["code"] == "signer_managed"


async def test_a_request_for_a_nonce_only_signer_names_the_matching_endpoint(giving: ApiServer) -> None:
    assert (await giving.post(f"/nonces/{giving.signers[0]}")).status == 200
    refused = await giving.post("/tx", giving.transfer())
    assert refused.problem == (409, "signer_protected", "signer")
    assert "nonce-only" in refused.json["detail"]
    assert "unprotect" not in refused.json["hint"]
    assert "/nonces/" in refused.json["hint"]


async def test_a_line_break_behind_a_token_or_a_hash_is_rejected(giving: ApiServer) -> None:
    """A `$` in a pattern matches before it too."""
    path = f"/nonces/{giving.signers[0]}"
    held = (await giving.post(path)).json["items"][0]
    tx_hash = "0x" + "11" * 32
    for mark, body in (("submitted", {"txHash": tx_hash}), ("used", {"txHash": tx_hash}), ("recyclable", {})):
        good = {"token": held["token"], **body}
        for field, value in good.items():
            broken = await giving.post(f"{path}/{held['nonce']}/{mark}", {**good, field: value + "\n"})
            assert broken.problem == (400, "field_invalid", field)

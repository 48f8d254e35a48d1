"""Every transaction type, contracts, and the outcome of reverting transactions. The bytecode here is written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.application.accept import Request
from fencepost.domain.ids import Address
from fencepost.domain.transaction import AccessEntry, Call, Fees, TxType
from fencepost.domain.transaction_state import Intent
from fencepost.facade import Fencepost
from fixtures.core import GWEI, SINK, WITHIN_S, Account, DatabaseReader, OwnChain
from fixtures.nodes import open_fencepost


def deployed_by(runtime: str) -> bytes:
    """Build init code for a runtime of less than 256 bytes: CODECOPY the bytes after these 12 to memory, RETURN them."""
    code = bytes.fromhex(runtime)
    return bytes.fromhex(f"60{len(code):02x}600c60003960{len(code):02x}6000f3") + code


def reverting_with(payload: bytes) -> str:
    """Build a runtime that copies the bytes behind its own 12 to memory and reverts with them."""
    size = f"{len(payload):02x}"
    return f"60{size}600c60003960{size}6000fd" + payload.hex()


# PUSH1 0 CALLDATALOAD PUSH1 0 SSTORE STOP: stores the first word of the call data in slot 0.
STORES = deployed_by("60003560005500")

# Error(string) with "no funds": selector, offset 32, length 8, the text padded to a word.
REASON = (
    bytes.fromhex("08c379a0")
    + (32).to_bytes(32, "big")
    + (8).to_bytes(32, "big")
    + b"no funds".ljust(32, b"\0")
)
# Panic(uint256) with 0x11: an overflow.
PANIC = bytes.fromhex("4e487b71") + (0x11).to_bytes(32, "big")
# A custom error that no ABI here defines: selector 0xdeadbeef and one word.
CUSTOM = bytes.fromhex("deadbeef") + (7).to_bytes(32, "big")

REVERTS = [
    pytest.param(REASON, "no funds", id="Error(string)"),
    pytest.param(PANIC, "arithmetic overflow or underflow", id="Panic"),
    pytest.param(CUSTOM, "0xdeadbeef", id="custom"),
]


async def deploy(fencepost: Fencepost, account: Account, code: bytes) -> Address:
    tx_id = await fencepost.create(signer=account.address, data=code)
    ended = await fencepost.wait_for(tx_id)
    assert ended is not None
    assert ended.state == "CONFIRMED", ended.error
    assert ended.mined is not None
    return Address(str(ended.mined.raw["contractAddress"]).lower())


async def on_chain(chain: OwnChain, tx_hash: str | None) -> dict[str, Any]:
    found: dict[str, Any] = await chain.call("eth_getTransactionByHash", tx_hash)
    return found


@pytest.mark.parametrize("tx_type", list(TxType))
@pytest.mark.parametrize("fees", [None, Fees(fee_cap_wei=30 * GWEI, tip_wei=2 * GWEI)])
async def test_each_transaction_type_is_mined_with_its_type(
    dsn: str, interval_chain: OwnChain, tx_type: TxType, fees: Fees | None
) -> None:
    account = interval_chain.accounts[0]
    entry = AccessEntry(address=SINK, storage_keys=(b"\x01" * 32,))
    call = Call(SINK, value_wei=3, access_list=() if tx_type is TxType.LEGACY else (entry,))
    async with open_fencepost(dsn, interval_chain, account) as fencepost:
        request = Request(fencepost.signer(account.address), Intent(call, fees=fees, type=tx_type))
        tx_id = (await fencepost.running.acceptor.create(request)).tx_id
        ended = await fencepost.wait_for(tx_id)
    assert ended is not None
    assert ended.state == "CONFIRMED", ended.error
    mined = await on_chain(interval_chain, ended.hash)
    assert int(mined["type"], 16) == tx_type
    assert int(mined["value"], 16) == 3
    if tx_type is TxType.LEGACY:
        assert not mined.get("accessList")
    else:
        assert mined["accessList"][0]["address"].lower() == SINK
    if fees is not None and tx_type is TxType.DYNAMIC_FEE:
        assert int(mined["maxFeePerGas"], 16) == fees.fee_cap_wei
        assert int(mined["maxPriorityFeePerGas"], 16) == fees.tip_wei
    elif fees is not None:
        assert int(mined["gasPrice"], 16) == fees.fee_cap_wei


async def test_a_contract_is_deployed_and_called(dsn: str, interval_chain: OwnChain) -> None:
    account = interval_chain.accounts[0]
    async with open_fencepost(dsn, interval_chain, account) as fencepost:
        contract = await deploy(fencepost, account, STORES)
        tx_id = await fencepost.create(signer=account.address, to=contract, data=(42).to_bytes(32, "big"))
        ended = await fencepost.wait_for(tx_id)
    assert ended is not None
    assert ended.state == "CONFIRMED", ended.error
    assert int(await interval_chain.call("eth_getStorageAt", contract, "0x0", "latest"), 16) == 42


@pytest.mark.parametrize(("payload", "reason"), REVERTS)
async def test_a_request_that_would_revert_is_rejected_before_it_has_a_nonce_and_delays_nothing(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader, payload: bytes, reason: str
) -> None:
    account = interval_chain.accounts[0]
    async with open_fencepost(dsn, interval_chain, account) as fencepost:
        contract = await deploy(fencepost, account, deployed_by(reverting_with(payload)))
        # Many failing requests come first: the request behind them must not wait for another wake-up.
        refused_ids = [await fencepost.create(signer=account.address, to=contract) for _ in range(10)]
        behind_id = await fencepost.create(signer=account.address, to=SINK, value_wei=1)
        behind = await fencepost.wait_for(behind_id, timeout_s=WITHIN_S)
        assert behind is not None
        assert (behind.state, behind.nonce) == ("CONFIRMED", 1)
        for tx_id in refused_ids:
            refused = await fencepost.get(tx_id)
            assert refused is not None
            assert (refused.state, refused.nonce, refused.attempts) == ("FAILED", None, ())
            assert refused.error is not None
            assert refused.error.startswith("would revert: ")
            assert reason in refused.error
            assert await db.events(tx_id) == ["Receive", "Refuse"]
    assert len(await interval_chain.mined_from(account.address)) == 2


@pytest.mark.parametrize(("payload", "reason"), REVERTS)
async def test_a_transaction_that_reverts_on_the_chain_fails_at_depth_with_its_reason(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader, payload: bytes, reason: str
) -> None:
    account = manual_chain.accounts[0]
    options = {"gas.refuse_reverting": "false", "nonce.mode": "pipelined"}
    code = deployed_by(reverting_with(payload))
    async with open_fencepost(dsn, manual_chain, account, options=options) as fencepost:
        deployment = await fencepost.create(signer=account.address, data=code)
        await fencepost.wait_for(deployment, "submitted")
        await manual_chain.mine(2)
        deployed = await fencepost.wait_for(deployment)
        assert deployed is not None
        assert deployed.mined is not None
        contract = deployed.mined.raw["contractAddress"].lower()
        tx_id = await fencepost.create(signer=account.address, to=contract, gas=100_000)
        await fencepost.wait_for(tx_id, "submitted")
        await manual_chain.mine()
        shallow = await fencepost.wait_for(tx_id, "mined")
        assert shallow is not None
        assert (shallow.state, shallow.error) == ("TRACKING", None)
        await manual_chain.mine()
        ended = await fencepost.wait_for(tx_id)
    assert ended is not None
    assert (ended.state, ended.nonce) == ("FAILED", 1)
    assert ended.error is not None
    assert ended.error.startswith("reverted: ")
    assert reason in ended.error
    assert ended.mined is not None
    assert not ended.mined.succeeded
    assert len(await manual_chain.mined_from(account.address)) == 2
    assert (await db.events(tx_id))[-1] == "Finish"

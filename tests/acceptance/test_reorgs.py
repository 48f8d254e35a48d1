"""Reorgs drop blocks with our transactions: each is found again, sent again, or reported. Nothing is sent twice."""

from __future__ import annotations

from uuid import UUID

import pytest
from eth_account import Account as EthAccount

from fencepost.domain.transaction_state import ManagedTx
from fencepost.facade import Fencepost
from fixtures.core import GWEI, SINK, Account, DatabaseReader, OwnChain, check_all_mined_once, eventually
from fixtures.nodes import heads_seen, open_fencepost

REQUIRED = 2
OPTIONS = {"confirmations.required": str(REQUIRED), "resubmit.interval": "60s"}
STRANGER_VALUE = 999
DEPTHS = pytest.mark.parametrize("depth", [1, 2, REQUIRED + 1])


async def mined_at(fencepost: Fencepost, chain: OwnChain, account: Account, *, depth: int) -> ManagedTx:
    """Transaction number 1, in a block with `depth - 1` blocks on top; the node knows it."""
    tx_id = await fencepost.create(signer=account.address, request_id="order-1", to=SINK, value_wei=1)
    await fencepost.wait_for(tx_id, "submitted")
    return await buried(fencepost, chain, tx_id, depth=depth)


async def buried(fencepost: Fencepost, chain: OwnChain, tx_id: UUID, *, depth: int) -> ManagedTx:
    await chain.mine(depth)

    async def is_known() -> bool:
        tx = await fencepost.get(tx_id)
        return tx is not None and tx.mined is not None and len(tx.confirmations) == depth - 1

    await eventually(is_known)
    tx = await fencepost.get(tx_id)
    assert tx is not None
    assert tx.state == ("CONFIRMED" if depth > REQUIRED else "TRACKING")
    return tx


async def check_list_is_canonical(chain: OwnChain, tx: ManagedTx | None) -> None:
    assert tx is not None
    assert tx.mined is not None
    blocks = [tx.mined.block, *tx.confirmations]
    assert len(blocks) == REQUIRED + 1
    for number, block in enumerate(blocks, start=tx.mined.block.number):
        assert block.number == number
        assert block.hash == (await chain.call("eth_getBlockByNumber", hex(number), False))["hash"]


async def forks_of(db: DatabaseReader, tx: ManagedTx) -> list[dict[str, object]]:
    return [detail for event, detail in await db.journal(tx.tx_id) if event == "Fork"]


@DEPTHS
async def test_a_transaction_whose_block_is_dropped_is_sent_again(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader, depth: int
) -> None:
    account = manual_chain.accounts[0]
    async with open_fencepost(dsn, manual_chain, account, options=OPTIONS) as fencepost:
        tx = await mined_at(fencepost, manual_chain, account, depth=depth)
        sends = (await db.events(tx.tx_id)).count("SendResult")
        await manual_chain.reorg(depth)
        await db.until_event(tx.tx_id, "SendResult", times=sends + 1)
        again = await fencepost.get(tx.tx_id)
        assert again is not None
        assert (again.state, again.nonce, again.mined, again.confirmations) == ("SUBMITTED", 0, None, ())
        assert [attempt.signed for attempt in again.attempts] == [attempt.signed for attempt in tx.attempts]
        await manual_chain.mine(REQUIRED + 1)
        await db.until_states(account, CONFIRMED=1)
        await check_list_is_canonical(manual_chain, await fencepost.get(tx.tx_id))
    (fork,) = await forks_of(db, tx)
    assert tx.mined is not None
    replaced = fork.pop("replaced")
    assert isinstance(replaced, list)
    assert replaced[0] == [tx.mined.block.number, tx.mined.block.hash], "its own block is replaced first"
    assert fork == {
        "newFork": True,
        "block": tx.mined.block.number,
        "blockHash": tx.mined.block.hash,
        "was": tx.state.value,
    }
    await check_all_mined_once(db, manual_chain, account, 1)


@DEPTHS
async def test_a_transaction_that_the_new_blocks_contain_is_found_there(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader, depth: int
) -> None:
    account = manual_chain.accounts[0]
    async with open_fencepost(dsn, manual_chain, account, options=OPTIONS) as fencepost:
        tx = await mined_at(fencepost, manual_chain, account, depth=depth)
        # In the last of the new blocks, at least one below the old position where possible.
        await manual_chain.reorg(depth, ("0x" + tx.latest.signed.raw.hex(), depth - 1))
        await db.until_event(tx.tx_id, "ReceiveReceipt", times=2)
        await manual_chain.mine(REQUIRED + 1)
        await db.until_states(account, CONFIRMED=1)
        ended = await fencepost.get(tx.tx_id)
        await check_list_is_canonical(manual_chain, ended)
    assert ended is not None
    assert ended.mined is not None
    assert tx.mined is not None
    assert ended.mined.block != tx.mined.block
    assert [fork["newFork"] for fork in await forks_of(db, tx)] == [True]
    await check_all_mined_once(db, manual_chain, account, 1)


@DEPTHS
async def test_another_attempt_of_the_transaction_may_be_mined_instead(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader, depth: int
) -> None:
    account = manual_chain.accounts[0]
    async with open_fencepost(dsn, manual_chain, account, options=OPTIONS) as fencepost:
        tx_id = await fencepost.create(signer=account.address, request_id="order-1", to=SINK, value_wei=1)
        await fencepost.wait_for(tx_id, "submitted")
        await fencepost.running.ledger.add_command(
            fencepost.signer(account.address), "bump", tx_id=tx_id, author="a test", reason=None, detail={}
        )
        fencepost.running.node.hint(fencepost.signer(account.address))
        await db.until_event(tx_id, "SendResult", times=2)
        tx = await buried(fencepost, manual_chain, tx_id, depth=depth)
        first, second = (attempt.signed for attempt in tx.attempts)
        assert tx.hash == second.hash
        await manual_chain.reorg(depth, ("0x" + first.raw.hex(), 0))
        await db.until_event(tx_id, "ReceiveReceipt", times=2)
        await manual_chain.mine(REQUIRED + 1)
        await db.until_states(account, CONFIRMED=1)
        ended = await fencepost.get(tx_id)
        await check_list_is_canonical(manual_chain, ended)
    assert ended is not None
    assert ended.hash == first.hash
    await check_all_mined_once(db, manual_chain, account, 1)


def foreign_transaction(chain: OwnChain, account: Account, *, nonce: int) -> str:
    """Sign a transaction with the same key outside Fencepost."""
    fields = {
        "chainId": chain.chain_id,
        "nonce": nonce,
        "to": bytes.fromhex(SINK[2:]),
        "value": STRANGER_VALUE,
        "gas": 21_000,
        "maxFeePerGas": 50 * GWEI,
        "maxPriorityFeePerGas": 5 * GWEI,
        "type": 2,
    }
    return "0x" + bytes(EthAccount.sign_transaction(fields, account.key).raw_transaction).hex()


@DEPTHS
async def test_a_foreign_transaction_at_the_nonce_protects_the_signer_and_fails_nothing(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader, depth: int
) -> None:
    account = manual_chain.accounts[0]
    async with open_fencepost(dsn, manual_chain, account, options=OPTIONS) as fencepost:
        tx = await mined_at(fencepost, manual_chain, account, depth=depth)
        queued_id = (
            await fencepost.create(signer=account.address, to=SINK, value_wei=2)
            if depth <= REQUIRED
            else None
        )
        await manual_chain.reorg(depth, (foreign_transaction(manual_chain, account, nonce=0), 0))
        reason = await db.until_protected(account)
        assert "not ours" in reason
        sends = (await db.events(tx.tx_id)).count("SendResult")
        await manual_chain.mine(REQUIRED + 2)
        await heads_seen(fencepost, manual_chain)
        held = await fencepost.get(tx.tx_id)
        assert held is not None
        assert (held.state, held.nonce, held.mined) == ("SUBMITTED", 0, None)
        assert (await db.events(tx.tx_id)).count("SendResult") == sends
        if queued_id is not None:
            waits = await fencepost.get(queued_id)
            assert waits is not None
            assert (waits.state, waits.nonce) == ("QUEUED", None)
    assert [int(mined["value"], 16) for mined in await manual_chain.mined_from(account.address)] == [
        STRANGER_VALUE
    ]
    assert await manual_chain.pool_size() == 0


async def test_a_reorg_above_the_transaction_replaces_its_confirmations_as_a_new_fork(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader
) -> None:
    """The transaction's own block stays; a reorg replaces two of the blocks above it."""
    account = manual_chain.accounts[0]
    async with open_fencepost(
        dsn, manual_chain, account, options=OPTIONS | {"confirmations.required": "4"}
    ) as fencepost:
        tx_id = await fencepost.create(signer=account.address, request_id="order-1", to=SINK, value_wei=1)
        await fencepost.wait_for(tx_id, "submitted")
        await manual_chain.mine(4)

        async def has_three() -> bool:
            tx = await fencepost.get(tx_id)
            return tx is not None and len(tx.confirmations) == 3

        await eventually(has_three)
        before = await fencepost.get(tx_id)
        assert before is not None
        await manual_chain.reorg(2)
        await db.until_event(tx_id, "Fork")
        after = await fencepost.get(tx_id)
        assert after is not None
        assert (after.state, after.mined) == ("TRACKING", before.mined)
        assert len(after.confirmations) == 3
        assert after.confirmations[0] == before.confirmations[0]
        assert set(after.confirmations[1:]).isdisjoint(before.confirmations)
        (fork,) = await forks_of(db, after)
        assert fork["newFork"] is True
        assert fork["blocks"] == [[block.number, block.hash] for block in after.confirmations]
        await manual_chain.mine(1)
        await db.until_states(account, CONFIRMED=1)
    await check_all_mined_once(db, manual_chain, account, 1)


async def test_the_node_follows_a_chain_that_becomes_shorter(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader
) -> None:
    account = manual_chain.accounts[0]
    async with open_fencepost(dsn, manual_chain, account, options=OPTIONS) as fencepost:
        tx = await mined_at(fencepost, manual_chain, account, depth=REQUIRED + 1)
        await manual_chain.call("anvil_rollback", REQUIRED + 1)
        await db.until_event(tx.tx_id, "SendResult", times=2)
        await manual_chain.mine(REQUIRED + 1)
        await db.until_states(account, CONFIRMED=1)
        await check_list_is_canonical(manual_chain, await fencepost.get(tx.tx_id))
    await check_all_mined_once(db, manual_chain, account, 1)


async def test_a_transaction_undone_while_no_node_ran_is_reopened_before_new_work(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader
) -> None:
    account = manual_chain.accounts[0]
    async with open_fencepost(dsn, manual_chain, account, options=OPTIONS) as fencepost:
        tx = await mined_at(fencepost, manual_chain, account, depth=REQUIRED + 1)
    await manual_chain.reorg(REQUIRED + 1)
    async with open_fencepost(dsn, manual_chain, account, options=OPTIONS) as fencepost:
        await fencepost.create(signer=account.address, request_id="order-2", to=SINK, value_wei=2)
        await db.until_event(tx.tx_id, "SendResult", times=2)
        await manual_chain.mine(REQUIRED + 1)
        await db.until_states(account, CONFIRMED=1, SUBMITTED=1)
        await manual_chain.mine(REQUIRED + 1)
        await db.until_states(account, CONFIRMED=2)
    await check_all_mined_once(db, manual_chain, account, 2)


async def test_many_dropped_transactions_are_sent_again_in_order(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader
) -> None:
    account = manual_chain.accounts[0]
    options = OPTIONS | {"nonce.mode": "pipelined"}
    async with open_fencepost(dsn, manual_chain, account, options=options) as fencepost:
        ids = []
        for i in range(1, 4):  # one per block
            ids.append(
                await fencepost.create(signer=account.address, request_id=f"order-{i}", to=SINK, value_wei=i)
            )
            await fencepost.wait_for(ids[-1], "submitted")
            await manual_chain.mine(1)
            await fencepost.wait_for(ids[-1], "mined")
        await db.until_states(account, CONFIRMED=1, TRACKING=2)
        await manual_chain.reorg(REQUIRED + 1)
        for tx_id in ids:
            await db.until_event(tx_id, "SendResult", times=2)
        await manual_chain.mine(REQUIRED + 1)
        await db.until_states(account, CONFIRMED=3)
    await check_all_mined_once(db, manual_chain, account, 3)


async def test_a_deep_reorg_wakes_signers_that_no_node_holds(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader
) -> None:
    """Every transaction had finished and the lease was released: the transaction is still reopened."""
    account = manual_chain.accounts[0]
    async with open_fencepost(
        dsn, manual_chain, account, options=OPTIONS | {"lease.idle_release": "100ms"}
    ) as fencepost:
        tx = await mined_at(fencepost, manual_chain, account, depth=REQUIRED + 1)

        async def is_released() -> bool:
            return len(fencepost.running.node.lanes) == 0

        await eventually(is_released)
        await manual_chain.reorg(REQUIRED + 1)
        await db.until_event(tx.tx_id, "SendResult", times=2)
        await manual_chain.mine(REQUIRED + 1)
        await db.until_states(account, CONFIRMED=1)
    await check_all_mined_once(db, manual_chain, account, 1)

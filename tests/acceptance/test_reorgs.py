"""Blocks go away, with our transaction in them: it is found again, sent again, or somebody is told. Nothing is doubled."""

from __future__ import annotations

from uuid import UUID

import pytest
from eth_account import Account as EthAccount

from fencepost.domain.managed import ManagedTx
from fencepost.facade import Fencepost
from fix_core import GWEI, SINK, Account, Book, OwnChain, check_all_mined_once, eventually
from fix_nodes import heads_seen, open_fencepost

REQUIRED = 2
OPTIONS = {"confirmations.required": str(REQUIRED), "resubmit.interval": "60s"}
STRANGER_VALUE = 999
DEPTHS = pytest.mark.parametrize("depth", [1, 2, REQUIRED + 1])


async def mined_at(fencepost: Fencepost, chain: OwnChain, account: Account, *, depth: int) -> ManagedTx:
    """Transaction number 1, in a block with `depth - 1` blocks on top, and known to be."""
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


async def forks_of(book: Book, tx: ManagedTx) -> list[dict[str, object]]:
    return [detail for event, detail in await book.journal(tx.tx_id) if event == "Fork"]


@DEPTHS
async def test_a_transaction_whose_block_is_dropped_goes_out_again(
    dsn: str, by_hand: OwnChain, book: Book, depth: int
) -> None:
    account = by_hand.accounts[0]
    async with open_fencepost(dsn, by_hand, account, options=OPTIONS) as fencepost:
        tx = await mined_at(fencepost, by_hand, account, depth=depth)
        sends = (await book.events(tx.tx_id)).count("SendResult")
        await by_hand.reorg(depth)
        await book.until_event(tx.tx_id, "SendResult", times=sends + 1)
        again = await fencepost.get(tx.tx_id)
        assert again is not None
        assert (again.state, again.nonce, again.mined, again.confirmations) == ("SUBMITTED", 0, None, ())
        assert [attempt.signed for attempt in again.attempts] == [attempt.signed for attempt in tx.attempts]
        await by_hand.mine(REQUIRED + 1)
        await book.until_states(account, CONFIRMED=1)
        await check_list_is_canonical(by_hand, await fencepost.get(tx.tx_id))
    (fork,) = await forks_of(book, tx)
    assert tx.mined is not None
    assert fork == {
        "newFork": True,
        "block": tx.mined.block.number,
        "blockHash": tx.mined.block.hash,
        "was": tx.state.value,
    }
    await check_all_mined_once(book, by_hand, account, 1)


@DEPTHS
async def test_a_transaction_that_the_new_blocks_hold_again_is_found_there(
    dsn: str, by_hand: OwnChain, book: Book, depth: int
) -> None:
    account = by_hand.accounts[0]
    async with open_fencepost(dsn, by_hand, account, options=OPTIONS) as fencepost:
        tx = await mined_at(fencepost, by_hand, account, depth=depth)
        # In the last of the new blocks, one below the old place at the least where there is one.
        await by_hand.reorg(depth, ("0x" + tx.latest.signed.raw.hex(), depth - 1))
        await book.until_event(tx.tx_id, "ReceiveReceipt", times=2)
        await by_hand.mine(REQUIRED + 1)
        await book.until_states(account, CONFIRMED=1)
        ended = await fencepost.get(tx.tx_id)
        await check_list_is_canonical(by_hand, ended)
    assert ended is not None
    assert ended.mined is not None
    assert tx.mined is not None
    assert ended.mined.block != tx.mined.block
    assert [fork["newFork"] for fork in await forks_of(book, tx)] == [True]
    await check_all_mined_once(book, by_hand, account, 1)


@DEPTHS
async def test_another_attempt_of_ours_may_take_the_place(
    dsn: str, by_hand: OwnChain, book: Book, depth: int
) -> None:
    account = by_hand.accounts[0]
    async with open_fencepost(dsn, by_hand, account, options=OPTIONS) as fencepost:
        tx_id = await fencepost.create(signer=account.address, request_id="order-1", to=SINK, value_wei=1)
        await fencepost.wait_for(tx_id, "submitted")
        await fencepost.running.ledger.ask(
            fencepost.signer(account.address), "bump", tx_id=tx_id, asked_by="a test", reason=None, detail={}
        )
        fencepost.running.node.hint(fencepost.signer(account.address))
        await book.until_event(tx_id, "SendResult", times=2)
        tx = await buried(fencepost, by_hand, tx_id, depth=depth)
        first, second = (attempt.signed for attempt in tx.attempts)
        assert tx.hash == second.hash
        await by_hand.reorg(depth, ("0x" + first.raw.hex(), 0))
        await book.until_event(tx_id, "ReceiveReceipt", times=2)
        await by_hand.mine(REQUIRED + 1)
        await book.until_states(account, CONFIRMED=1)
        ended = await fencepost.get(tx_id)
        await check_list_is_canonical(by_hand, ended)
    assert ended is not None
    assert ended.hash == first.hash
    await check_all_mined_once(book, by_hand, account, 1)


def strangers_transaction(chain: OwnChain, account: Account, *, nonce: int) -> str:
    """The same key, used elsewhere."""
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
async def test_a_strangers_transaction_in_its_place_stops_the_signer_and_fails_nothing(
    dsn: str, by_hand: OwnChain, book: Book, depth: int
) -> None:
    account = by_hand.accounts[0]
    async with open_fencepost(dsn, by_hand, account, options=OPTIONS) as fencepost:
        tx = await mined_at(fencepost, by_hand, account, depth=depth)
        queued_id = (
            await fencepost.create(signer=account.address, to=SINK, value_wei=2)
            if depth <= REQUIRED
            else None
        )
        await by_hand.reorg(depth, (strangers_transaction(by_hand, account, nonce=0), 0))
        reason = await book.until_protected(account)
        assert "not ours" in reason
        sends = (await book.events(tx.tx_id)).count("SendResult")
        await by_hand.mine(REQUIRED + 2)
        await heads_seen(fencepost, by_hand)
        held = await fencepost.get(tx.tx_id)
        assert held is not None
        assert (held.state, held.nonce, held.mined) == ("SUBMITTED", 0, None)
        assert (await book.events(tx.tx_id)).count("SendResult") == sends
        if queued_id is not None:
            waits = await fencepost.get(queued_id)
            assert waits is not None
            assert (waits.state, waits.nonce) == ("QUEUED", None)
    assert [int(mined["value"], 16) for mined in await by_hand.mined_from(account.address)] == [
        STRANGER_VALUE
    ]
    assert await by_hand.pool_size() == 0


async def test_other_blocks_on_top_replace_the_list_and_say_so(
    dsn: str, by_hand: OwnChain, book: Book
) -> None:
    """The transaction's own block stays: two of the blocks above it are other ones now."""
    account = by_hand.accounts[0]
    async with open_fencepost(
        dsn, by_hand, account, options=OPTIONS | {"confirmations.required": "4"}
    ) as fencepost:
        tx_id = await fencepost.create(signer=account.address, request_id="order-1", to=SINK, value_wei=1)
        await fencepost.wait_for(tx_id, "submitted")
        await by_hand.mine(4)

        async def has_three() -> bool:
            tx = await fencepost.get(tx_id)
            return tx is not None and len(tx.confirmations) == 3

        await eventually(has_three)
        before = await fencepost.get(tx_id)
        assert before is not None
        await by_hand.reorg(2)
        await book.until_event(tx_id, "Fork")
        after = await fencepost.get(tx_id)
        assert after is not None
        assert (after.state, after.mined) == ("TRACKING", before.mined)
        assert len(after.confirmations) == 3
        assert after.confirmations[0] == before.confirmations[0]
        assert set(after.confirmations[1:]).isdisjoint(before.confirmations)
        (fork,) = await forks_of(book, after)
        assert fork["newFork"] is True
        assert fork["blocks"] == [[block.number, block.hash] for block in after.confirmations]
        await by_hand.mine(1)
        await book.until_states(account, CONFIRMED=1)
    await check_all_mined_once(book, by_hand, account, 1)


async def test_a_chain_that_becomes_shorter_is_followed(dsn: str, by_hand: OwnChain, book: Book) -> None:
    account = by_hand.accounts[0]
    async with open_fencepost(dsn, by_hand, account, options=OPTIONS) as fencepost:
        tx = await mined_at(fencepost, by_hand, account, depth=REQUIRED + 1)
        await by_hand.call("anvil_rollback", REQUIRED + 1)
        await book.until_event(tx.tx_id, "SendResult", times=2)
        await by_hand.mine(REQUIRED + 1)
        await book.until_states(account, CONFIRMED=1)
        await check_list_is_canonical(by_hand, await fencepost.get(tx.tx_id))
    await check_all_mined_once(book, by_hand, account, 1)


async def test_what_was_undone_while_no_node_ran_is_opened_again_before_anything_new(
    dsn: str, by_hand: OwnChain, book: Book
) -> None:
    account = by_hand.accounts[0]
    async with open_fencepost(dsn, by_hand, account, options=OPTIONS) as fencepost:
        tx = await mined_at(fencepost, by_hand, account, depth=REQUIRED + 1)
    await by_hand.reorg(REQUIRED + 1)
    async with open_fencepost(dsn, by_hand, account, options=OPTIONS) as fencepost:
        await fencepost.create(signer=account.address, request_id="order-2", to=SINK, value_wei=2)
        await book.until_event(tx.tx_id, "SendResult", times=2)
        await by_hand.mine(REQUIRED + 1)
        await book.until_states(account, CONFIRMED=1, SUBMITTED=1)
        await by_hand.mine(REQUIRED + 1)
        await book.until_states(account, CONFIRMED=2)
    await check_all_mined_once(book, by_hand, account, 2)


async def test_many_in_flight_are_dropped_together_and_go_out_in_order(
    dsn: str, by_hand: OwnChain, book: Book
) -> None:
    account = by_hand.accounts[0]
    options = OPTIONS | {"nonce.mode": "pipelined"}
    async with open_fencepost(dsn, by_hand, account, options=options) as fencepost:
        ids = []
        for i in range(1, 4):  # one a block
            ids.append(
                await fencepost.create(signer=account.address, request_id=f"order-{i}", to=SINK, value_wei=i)
            )
            await fencepost.wait_for(ids[-1], "submitted")
            await by_hand.mine(1)
            await fencepost.wait_for(ids[-1], "mined")
        await book.until_states(account, CONFIRMED=1, TRACKING=2)
        await by_hand.reorg(REQUIRED + 1)
        for tx_id in ids:
            await book.until_event(tx_id, "SendResult", times=2)
        await by_hand.mine(REQUIRED + 1)
        await book.until_states(account, CONFIRMED=3)
    await check_all_mined_once(book, by_hand, account, 3)


async def test_a_deep_reorg_wakes_signers_that_nobody_holds_any_more(
    dsn: str, by_hand: OwnChain, book: Book
) -> None:
    """Everything had ended and the lease had gone back: the transaction is opened again all the same."""
    account = by_hand.accounts[0]
    async with open_fencepost(
        dsn, by_hand, account, options=OPTIONS | {"lease.idle_release": "100ms"}
    ) as fencepost:
        tx = await mined_at(fencepost, by_hand, account, depth=REQUIRED + 1)

        async def is_let_go() -> bool:
            return len(fencepost.running.node.lanes) == 0

        await eventually(is_let_go)
        await by_hand.reorg(REQUIRED + 1)
        await book.until_event(tx.tx_id, "SendResult", times=2)
        await by_hand.mine(REQUIRED + 1)
        await book.until_states(account, CONFIRMED=1)
    await check_all_mined_once(book, by_hand, account, 1)

"""Strict: the next request has no nonce until the one before is consumed to full depth."""

from __future__ import annotations

from fix_core import SINK, Book, OwnChain, check_all_mined_once
from fix_nodes import heads_seen, open_fencepost


async def test_the_second_request_stays_queued_until_the_first_is_at_depth(
    dsn: str, by_hand: OwnChain, book: Book
) -> None:
    account = by_hand.accounts[0]
    async with open_fencepost(dsn, by_hand, account, options={"confirmations.required": "3"}) as fencepost:
        first = await fencepost.create(signer=account.address, request_id="order-1", to=SINK, value_wei=1)
        second = await fencepost.create(signer=account.address, request_id="order-2", to=SINK, value_wei=2)
        await fencepost.wait_for(first, "submitted")
        for blocks in range(4):  # its own block, and two of the three that must follow
            await heads_seen(fencepost, by_hand)
            waits, runs = await fencepost.get(second), await fencepost.get(first)
            assert waits is not None
            assert runs is not None
            assert (waits.state, waits.nonce, waits.attempts) == ("QUEUED", None, ())
            assert runs.state == ("SUBMITTED" if blocks == 0 else "TRACKING")
            assert len(runs.confirmations) == max(0, blocks - 1)
            assert await by_hand.nonce(account.address, "pending") == 1
            await by_hand.mine()
        sent = await fencepost.wait_for(second, "submitted")
        assert sent is not None
        assert (sent.state, sent.nonce) == ("SUBMITTED", 1)
        ended = await fencepost.get(first)
        assert ended is not None
        assert ended.state == "CONFIRMED"
        await by_hand.mine(4)
        await book.until_states(account, CONFIRMED=2)
    await check_all_mined_once(book, by_hand, account, 2)


async def test_a_used_address_is_protected_and_not_guessed_about(
    dsn: str, by_hand: OwnChain, book: Book
) -> None:
    account = by_hand.accounts[0]
    await by_hand.call("eth_sendTransaction", {"from": account.address, "to": SINK, "value": "0x1"})
    await by_hand.mine()
    async with open_fencepost(dsn, by_hand, account) as fencepost:
        tx_id = await fencepost.create(signer=account.address, to=SINK, value_wei=1)
        assert "start at 0" in await book.until_protected(account)
        tx = await fencepost.get(tx_id)
    assert tx is not None
    assert (tx.state, tx.nonce) == ("QUEUED", None)
    assert await by_hand.pool_size() == 0

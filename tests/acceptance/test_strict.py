"""Strict mode: the next request has no nonce until the previous transaction has its full depth."""

from __future__ import annotations

from fixtures.core import SINK, DatabaseReader, OwnChain, check_all_mined_once
from fixtures.nodes import heads_seen, open_fencepost


async def test_the_second_request_stays_queued_until_the_first_is_at_depth(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader
) -> None:
    account = manual_chain.accounts[0]
    async with open_fencepost(
        dsn, manual_chain, account, options={"confirmations.required": "3"}
    ) as fencepost:
        first = await fencepost.create(signer=account.address, request_id="order-1", to=SINK, value_wei=1)
        second = await fencepost.create(signer=account.address, request_id="order-2", to=SINK, value_wei=2)
        await fencepost.wait_for(first, "submitted")
        for blocks in range(4):  # its own block and two of the three required confirmations
            await heads_seen(fencepost, manual_chain)
            waits, runs = await fencepost.get(second), await fencepost.get(first)
            assert waits is not None
            assert runs is not None
            assert (waits.state, waits.nonce, waits.attempts) == ("QUEUED", None, ())
            assert runs.state == ("SUBMITTED" if blocks == 0 else "TRACKING")
            assert len(runs.confirmations) == max(0, blocks - 1)
            assert await manual_chain.nonce(account.address, "pending") == 1
            await manual_chain.mine()
        sent = await fencepost.wait_for(second, "submitted")
        assert sent is not None
        assert (sent.state, sent.nonce) == ("SUBMITTED", 1)
        ended = await fencepost.get(first)
        assert ended is not None
        assert ended.state == "CONFIRMED"
        await manual_chain.mine(4)
        await db.until_states(account, CONFIRMED=2)
    await check_all_mined_once(db, manual_chain, account, 2)


async def test_a_used_address_protects_the_signer_at_first_use(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader
) -> None:
    account = manual_chain.accounts[0]
    await manual_chain.call("eth_sendTransaction", {"from": account.address, "to": SINK, "value": "0x7"})
    await manual_chain.mine()
    async with open_fencepost(dsn, manual_chain, account) as fencepost:
        tx_id = await fencepost.create(signer=account.address, to=SINK, value_wei=1)
        assert "nonce.start_from is 0" in await db.until_protected(account)
        tx = await fencepost.get(tx_id)
    assert tx is not None
    assert (tx.state, tx.nonce) == ("QUEUED", None)
    assert await manual_chain.pool_size() == 0

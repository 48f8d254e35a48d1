"""Behaviour of the in-memory chain that the contract tests can't provoke at a real endpoint."""

from __future__ import annotations

import pytest

from fencepost.domain.ids import Address, TxHash
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.transaction import Call, SignedTx
from fencepost.errors import InsufficientFunds, RpcUnavailable
from fencepost.testing import InMemoryChain, LostResponse

SENDER = Address("0x" + "11" * 20)


def decode(raw: bytes) -> tuple[Address, int, int, int, Call]:
    return SENDER, raw[0], 10**9, 10**10, Call(to=SENDER)


def tx(nonce: int, *, twin: int = 0) -> SignedTx:
    return SignedTx(raw=bytes([nonce]), hash=TxHash(f"0x{(nonce + 1) * 1000 + twin:064x}"))


@pytest.fixture
def chain() -> InMemoryChain:
    return InMemoryChain(decode)


async def test_scripted_faults_come_in_order(chain: InMemoryChain) -> None:
    own = SendResult(SendCategory.POOL_FULL, "full")
    chain.script_next_sends(LostResponse.BEFORE, LostResponse.AFTER, own, None)
    txs = [tx(0), tx(0), tx(1), tx(1), tx(2)]
    results = await chain.send(txs)
    assert [result.category for result in results] == [
        SendCategory.UNKNOWN,
        SendCategory.UNKNOWN,
        SendCategory.POOL_FULL,
        SendCategory.ACCEPTED,
        SendCategory.ACCEPTED,
    ]
    assert chain.pool == {tx(0).hash, tx(1).hash, tx(2).hash}
    assert chain.sent == txs


async def test_a_send_lost_before_is_absent_and_one_lost_after_is_pending(chain: InMemoryChain) -> None:
    chain.script_next_sends(LostResponse.BEFORE)
    await chain.send([tx(0)])
    assert await chain.knows([tx(0).hash]) == [False]
    chain.script_next_sends(LostResponse.AFTER)
    await chain.send([tx(0)])
    assert await chain.knows([tx(0).hash]) == [True]


async def test_a_reorg_keeps_the_given_transactions_and_the_rest_is_pending(chain: InMemoryChain) -> None:
    await chain.send([tx(0), tx(1)])
    chain.mine()
    old = await chain.head()
    chain.reorg(1, keep=[tx(0).hash])
    kept, gone = await chain.receipts([tx(0).hash, tx(1).hash])
    assert kept is not None
    assert (kept.block.number, kept.block.hash == old.hash) == (1, False)
    assert gone is None
    assert chain.pool == {tx(1).hash}
    assert (await chain.head()).number == old.number + 1
    with pytest.raises(ValueError, match="can't be mined"):
        chain.reorg(1, keep=[tx(5).hash])
    with pytest.raises(ValueError, match="out of"):
        chain.reorg(9)


async def test_a_dropped_transaction_is_unknown(chain: InMemoryChain) -> None:
    await chain.send([tx(0)])
    chain.drop(tx(0).hash)
    assert await chain.knows([tx(0).hash]) == [False]
    assert await chain.nonce(SENDER, "pending") == 0


async def test_a_foreign_transaction_takes_the_nonce(chain: InMemoryChain) -> None:
    await chain.send([tx(0)])
    theirs = chain.add_foreign_tx(SENDER, nonce=0)
    assert await chain.knows([tx(0).hash, theirs]) == [False, True]
    block = chain.mine()
    assert block.tx_hashes == (theirs,)
    [result] = await chain.send([tx(0)])
    assert (result.category, result.chain_nonce) == (SendCategory.NONCE_TOO_LOW, 1)
    assert chain.add_foreign_tx(SENDER) in chain.pool


async def test_the_nonce_of_a_lagging_endpoint_is_old(chain: InMemoryChain) -> None:
    await chain.send([tx(0)])
    chain.mine(2)
    assert await chain.nonce(SENDER, "latest") == 1
    chain.nonce_lag_blocks = 2
    assert await chain.nonce(SENDER, "latest") == 0


async def test_an_underpriced_transaction_waits(chain: InMemoryChain) -> None:
    await chain.send([tx(0)])
    chain.base_fee_wei = 10**11
    assert chain.mine().tx_hashes == ()
    assert chain.pool == {tx(0).hash}


async def test_offline_reads_fail_and_sends_are_unknown(chain: InMemoryChain) -> None:
    chain.offline = True
    with pytest.raises(RpcUnavailable):
        await chain.head()
    [result] = await chain.send([tx(0)])
    assert result.category is SendCategory.UNKNOWN
    assert chain.pool == frozenset()


async def test_an_amount_above_the_balance_cannot_be_estimated(chain: InMemoryChain) -> None:
    chain.balances[SENDER] = 5
    with pytest.raises(InsufficientFunds):
        await chain.estimate_gas(SENDER, Call(to=SENDER, value_wei=6))

"""The contract of the `Chain` port, checked over the fake and over `EvmChain` on a real endpoint.

Each test has its own account, so a chain that is shared between tests does not matter.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import pytest
from coincurve import PrivateKey

from fencepost.adapters.evm.chain import EvmChain
from fencepost.adapters.evm.encoding import address_of, decode_signed, sign_tx
from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.application.ports import Chain
from fencepost.domain.ids import Address, TxHash
from fencepost.domain.send_result import SendCategory
from fencepost.domain.transaction import AccessEntry, Call, Fees, SignedTx, TxType, UnsignedTx
from fencepost.errors import ChainUnusable, WouldRevert
from fencepost.testing import DecodedTx, InMemoryChain
from fixtures.anvil import TestChain

CHAIN_ID = 31_337
GWEI = 10**9
UNKNOWN_HASH = TxHash("0x" + "77" * 32)
REASON = "not today"


def _reverting_code(reason: str) -> bytes:
    """Build code that copies its own tail, `Error(reason)`, to memory and reverts with it."""
    text = reason.encode()
    words = (32).to_bytes(32, "big") + len(text).to_bytes(32, "big") + text + bytes(-len(text) % 32)
    tail = bytes.fromhex("08c379a0") + words
    return bytes.fromhex(f"60{len(tail):02x}600c600039 60{len(tail):02x}6000fd") + tail


class Lab(Protocol):
    """A chain under test that the test can mine and reorg."""

    key: PrivateKey
    chain: Chain

    async def mine(self) -> None: ...
    async def reorg(self, depth: int) -> None: ...
    async def empty(self, address: Address) -> None: ...
    def expect_revert(self, tx_hash: TxHash | None) -> None: ...


class FakeLab:
    def __init__(self) -> None:
        self.key = PrivateKey()
        self.fake = InMemoryChain(self._decode, chain_id=CHAIN_ID)
        self.chain: Chain = self.fake

    @staticmethod
    def _decode(raw: bytes) -> DecodedTx:
        found = decode_signed(raw)
        return DecodedTx(
            found.sender,
            found.tx.nonce,
            found.tx.fees.tip_wei,
            found.tx.fees.fee_cap_wei,
            found.tx.call,
        )

    async def mine(self) -> None:
        self.fake.mine()

    async def reorg(self, depth: int) -> None:
        self.fake.reorg(depth)

    async def empty(self, address: Address) -> None:
        self.fake.balances[address] = 0

    def expect_revert(self, tx_hash: TxHash | None) -> None:
        if tx_hash is not None:
            self.fake.reverting[tx_hash] = REASON
        self.fake.reverting_calls[None] = REASON


class AnvilLab:
    def __init__(self, chain: EvmChain, rpc: JsonRpc) -> None:
        self.key = PrivateKey()
        self.chain: Chain = chain
        self._rpc = rpc

    async def set_up(self) -> None:
        await self._rpc.call("evm_setAutomine", [False])
        await self._rpc.call("anvil_setBalance", [address_of(self.key.public_key), hex(10**21)])

    async def tear_down(self) -> None:
        await self._rpc.call("anvil_dropAllTransactions")
        await self._rpc.call("evm_setAutomine", [True])

    async def mine(self) -> None:
        await self._rpc.call("evm_mine")

    async def reorg(self, depth: int) -> None:
        await self._rpc.call("anvil_reorg", [depth, []])

    async def empty(self, address: Address) -> None:
        await self._rpc.call("anvil_setBalance", [address, "0x0"])

    def expect_revert(self, tx_hash: TxHash | None) -> None:
        """The code itself reverts here."""


@pytest.fixture(params=["fake", "anvil"])
async def lab(request: pytest.FixtureRequest, anvil: TestChain) -> AsyncIterator[Lab]:
    if request.param == "fake":
        yield FakeLab()
        return
    rpc = JsonRpc(anvil.rpc_url, timeout_s=20)
    chain = EvmChain([rpc])
    await chain.verify_chain_id(CHAIN_ID)
    real = AnvilLab(chain, rpc)
    await real.set_up()
    try:
        yield real
    finally:
        await real.tear_down()
        await chain.close()


def sender(lab: Lab) -> Address:
    return address_of(lab.key.public_key)


def signed(
    lab: Lab,
    nonce: int,
    *,
    tip: int = GWEI,
    cap: int = 100 * GWEI,
    call: Call | None = None,
    gas: int = 100_000,
) -> SignedTx:
    wanted = call or Call(to=sender(lab))
    tx = UnsignedTx(
        chain_id=CHAIN_ID, nonce=nonce, call=wanted, gas=gas, fees=Fees(fee_cap_wei=cap, tip_wei=tip)
    )
    return sign_tx(tx, lab.key)


async def categories(lab: Lab, *txs: SignedTx) -> list[SendCategory]:
    return [result.category for result in await lab.chain.send(txs)]


async def nonces(lab: Lab) -> tuple[int, int]:
    return await lab.chain.nonce(sender(lab), "latest"), await lab.chain.nonce(sender(lab), "pending")


async def test_the_chain_returns_its_id(lab: Lab) -> None:
    assert lab.chain.chain_id == CHAIN_ID


async def test_a_sent_transaction_is_known_and_then_mined(lab: Lab) -> None:
    tx = signed(lab, 0)
    assert await nonces(lab) == (0, 0)
    [result] = await lab.chain.send([tx])
    assert (result.category, result.returned_hash) == (SendCategory.ACCEPTED, tx.hash)
    assert await nonces(lab) == (0, 1)
    assert list(await lab.chain.knows([UNKNOWN_HASH, tx.hash])) == [False, True]
    assert list(await lab.chain.receipts([tx.hash, UNKNOWN_HASH])) == [None, None]

    await lab.mine()
    assert await nonces(lab) == (1, 1)
    missing, receipt = await lab.chain.receipts([UNKNOWN_HASH, tx.hash])
    head = await lab.chain.head()
    assert missing is None
    assert receipt is not None
    assert (receipt.tx_hash, receipt.block) == (tx.hash, (head.number, head.hash))
    assert receipt.succeeded
    assert receipt.gas_used == 21_000
    assert receipt.raw["transactionHash"] == tx.hash
    at_once, seen = await lab.chain.receipts_and_head([UNKNOWN_HASH, tx.hash])
    assert (list(at_once), seen) == ([None, receipt], head)
    assert list(await lab.chain.knows([tx.hash])) == [True]
    assert await lab.chain.revert_reason(UNKNOWN_HASH) is None
    assert await lab.chain.revert_reason(tx.hash) is None


async def test_a_survey_shows_head_account_and_known_transactions(lab: Lab) -> None:
    tx = signed(lab, 0)
    await lab.chain.send([tx])
    (report,) = await lab.chain.survey(sender(lab), [tx.hash, UNKNOWN_HASH], timeout_s=20)
    head = await lab.chain.head()
    assert report.trouble is None
    assert report.head is not None
    assert (report.head.number, report.head.hash) == (head.number, head.hash)
    assert (report.latest_nonce, report.pending_nonce) == (0, 1)
    assert report.balance_wei == await lab.chain.balance_wei(sender(lab))
    assert report.known == (True, False)


async def test_a_survey_without_an_account_shows_the_head(lab: Lab) -> None:
    (report,) = await lab.chain.survey(None, [], timeout_s=20)
    assert report.head is not None
    assert (report.latest_nonce, report.balance_wei, report.known) == (None, None, ())


async def test_an_empty_query_returns_an_empty_answer(lab: Lab) -> None:
    assert list(await lab.chain.send([])) == []
    assert list(await lab.chain.receipts([])) == []
    assert await lab.chain.receipts_and_head([]) == ([], await lab.chain.head())
    assert list(await lab.chain.knows([])) == []


async def test_blocks_are_linked_and_list_their_transactions(lab: Lab) -> None:
    txs = [signed(lab, nonce) for nonce in range(3)]
    assert await categories(lab, *txs) == [SendCategory.ACCEPTED] * 3
    before = await lab.chain.head()
    await lab.mine()
    await lab.mine()
    head = await lab.chain.head()
    assert head.number == before.number + 2
    first, second = await lab.chain.block(before.number + 1), await lab.chain.block(head.number)
    assert first is not None
    assert second is not None
    assert second.header == head
    assert (first.header.parent_hash, second.header.parent_hash) == (before.hash, first.header.hash)
    assert (set(first.tx_hashes), second.tx_hashes) == ({tx.hash for tx in txs}, ())
    assert head.base_fee_wei is not None
    assert head.timestamp_s >= first.header.timestamp_s
    assert await lab.chain.block(head.number + 1000) is None


async def test_latest_safe_and_finalized_heads_are_in_order(lab: Lab) -> None:
    await lab.mine()
    final, safe, latest, pending = [
        (await lab.chain.head(tag)).number for tag in ("finalized", "safe", "latest", "pending")
    ]
    assert final <= safe <= latest < pending


async def test_sending_the_same_bytes_again_is_already_known(lab: Lab) -> None:
    tx = signed(lab, 0)
    assert await categories(lab, tx) == [SendCategory.ACCEPTED]
    assert await categories(lab, tx) == [SendCategory.ALREADY_KNOWN]
    await lab.mine()
    assert await categories(lab, tx) == [SendCategory.NONCE_TOO_LOW]


async def test_a_replacement_must_pay_more(lab: Lab) -> None:
    first = signed(lab, 0, tip=10 * GWEI)
    cheap = signed(lab, 0, tip=10 * GWEI + 1)
    dear = signed(lab, 0, tip=11 * GWEI, cap=110 * GWEI)
    assert await categories(lab, first) == [SendCategory.ACCEPTED]
    assert await categories(lab, cheap) == [SendCategory.REPLACEMENT_UNDERPRICED]
    assert await categories(lab, dear) == [SendCategory.ACCEPTED]
    assert list(await lab.chain.knows([first.hash, dear.hash])) == [False, True]
    await lab.mine()
    lost, mined = await lab.chain.receipts([first.hash, dear.hash])
    assert lost is None
    assert mined is not None


async def test_a_transaction_above_a_gap_waits_for_its_nonce(lab: Lab) -> None:
    zero, two = signed(lab, 0), signed(lab, 2)
    assert await categories(lab, zero, two) == [SendCategory.ACCEPTED] * 2
    assert await nonces(lab) == (0, 1)
    await lab.mine()
    assert await nonces(lab) == (1, 1)
    assert await categories(lab, signed(lab, 1)) == [SendCategory.ACCEPTED]
    assert await nonces(lab) == (1, 3)
    await lab.mine()
    assert await nonces(lab) == (3, 3)


async def test_each_rejection_has_its_own_category(lab: Lab) -> None:
    good, bad_tip, too_cheap = (
        signed(lab, 0),
        signed(lab, 1, tip=101 * GWEI),
        signed(lab, 1, tip=1, cap=1),
    )
    assert await categories(lab, good, bad_tip, too_cheap) == [
        SendCategory.ACCEPTED,
        SendCategory.FATAL,
        SendCategory.UNDERPRICED,
    ]


async def test_an_empty_account_cannot_pay(lab: Lab) -> None:
    assert await lab.chain.balance_wei(sender(lab)) == 10**21
    await lab.empty(sender(lab))
    assert await lab.chain.balance_wei(sender(lab)) == 0
    assert await categories(lab, signed(lab, 0)) == [SendCategory.INSUFFICIENT_FUNDS]


async def test_a_quote_allows_the_base_fee_to_double(lab: Lab) -> None:
    await lab.mine()
    fees = (await lab.chain.quote_fees()).normal
    base_fee_wei = (await lab.chain.head("pending")).base_fee_wei
    assert base_fee_wei is not None
    assert fees.tip_wei > 0
    assert fees.fee_cap_wei == 2 * base_fee_wei + fees.tip_wei
    assert await categories(lab, signed(lab, 0, tip=fees.tip_wei, cap=fees.fee_cap_wei)) == [
        SendCategory.ACCEPTED
    ]


async def test_a_revert_is_predicted_and_explained(lab: Lab) -> None:
    call = Call(to=None, data=_reverting_code(REASON))
    tx = signed(lab, 0, call=call)
    assert await lab.chain.estimate_gas(sender(lab), Call(to=sender(lab))) == 21_000
    lab.expect_revert(tx.hash)
    with pytest.raises(WouldRevert, match=f"^{REASON}$"):
        await lab.chain.estimate_gas(sender(lab), call)
    assert await categories(lab, tx) == [SendCategory.ACCEPTED]
    assert await lab.chain.revert_reason(tx.hash) is None
    await lab.mine()
    [receipt] = await lab.chain.receipts([tx.hash])
    assert receipt is not None
    assert not receipt.succeeded
    assert await lab.chain.revert_reason(tx.hash) == REASON


async def test_a_reorg_removes_the_receipt(lab: Lab) -> None:
    await lab.mine()
    tx = signed(lab, 0)
    await lab.chain.send([tx])
    await lab.mine()
    [receipt] = await lab.chain.receipts([tx.hash])
    assert receipt is not None
    await lab.reorg(1)
    [gone] = await lab.chain.receipts([tx.hash])
    other = await lab.chain.block(receipt.block.number)
    assert gone is None
    assert other is not None
    assert other.header.hash != receipt.block.hash
    assert await lab.chain.nonce(sender(lab), "latest") == 0


async def test_the_nonce_is_known_after_each_block(lab: Lab) -> None:
    before = await lab.chain.head()
    for nonce in range(2):
        await lab.chain.send([signed(lab, nonce)])
        await lab.mine()
    numbers = [before.number, before.number + 1, before.number + 2]
    assert [await lab.chain.nonce_at(sender(lab), number) for number in numbers] == [0, 1, 2]
    assert await lab.chain.nonce_at(sender(lab), before.number + 1000) is None


@pytest.mark.parametrize("tx_type", list(TxType))
async def test_the_transactions_of_a_block_include_the_sent_bytes(lab: Lab, tx_type: TxType) -> None:
    call = Call(to=Address("0x" + "5e" * 20), value_wei=7, data=b"\x01\x02")
    if tx_type is not TxType.LEGACY:
        call = call.changed(access_list=(AccessEntry(call.to or sender(lab), (bytes(32),)),))
    fees = Fees(100 * GWEI, GWEI if tx_type is TxType.DYNAMIC_FEE else 100 * GWEI)
    txs = [sign_tx(UnsignedTx(CHAIN_ID, nonce, call, 100_000, fees, tx_type), lab.key) for nonce in range(2)]
    await lab.chain.send(txs)
    await lab.mine()
    head = await lab.chain.head()
    mined = await lab.chain.transactions_of(sender(lab), head.number)
    assert mined is not None
    assert [(tx.hash, tx.nonce, tx.raw) for tx in mined] == [
        (tx.hash, nonce, tx.raw) for nonce, tx in enumerate(txs)
    ]
    assert {(tx.chain_id, tx.sender, tx.block, tx.call) for tx in mined} == {
        (CHAIN_ID, sender(lab), (head.number, head.hash), call)
    }
    assert await lab.chain.transactions_of(Address("0x" + "77" * 20), head.number) == []
    assert await lab.chain.transactions_of(sender(lab), head.number + 1000) is None


async def test_block_receipts_equal_the_single_receipts(lab: Lab) -> None:
    txs = [signed(lab, nonce) for nonce in range(2)]
    await lab.chain.send(txs)
    await lab.mine()
    chain = lab.chain
    assert isinstance(chain, EvmChain | InMemoryChain)
    head = await chain.head()
    by_block = await chain.block_receipts(head.number)
    assert by_block is not None
    by_hash = await chain.receipts([receipt.tx_hash for receipt in by_block])
    assert {receipt.tx_hash for receipt in by_block} == {tx.hash for tx in txs}
    assert [(r.block, r.gas_used) for r in by_block] == [(r.block, r.gas_used) for r in by_hash if r]
    assert await chain.block_receipts(head.number + 1000) is None


async def test_a_transaction_for_another_chain_id_is_rejected(anvil: TestChain) -> None:
    chain = EvmChain([JsonRpc(anvil.rpc_url)])
    try:
        with pytest.raises(ChainUnusable, match=r"is on chain 31337, not 1$"):
            await chain.verify_chain_id(1)
        with pytest.raises(ChainUnusable, match="not been verified"):
            _ = chain.chain_id
        assert await chain.verify_chain_id(0) == CHAIN_ID == chain.chain_id
    finally:
        await chain.close()

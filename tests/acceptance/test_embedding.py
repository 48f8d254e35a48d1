"""Fencepost in one's own process: the whole front, on a real chain."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest
from eth_account import Account as EthAccount

from fencepost.application.hooks import NonceContext
from fencepost.domain.transaction import Call, UnsignedTx
from fencepost.errors import InvalidRequest, UnknownSigner
from fix_core import SINK, Account, Book, OwnChain, check_sealed
from fix_nodes import open_fencepost


async def test_create_get_by_request_and_wait_for(dsn: str, ticking: OwnChain, book: Book) -> None:
    account = ticking.accounts[0]
    async with open_fencepost(dsn, ticking, account) as fencepost:
        tx_id = await fencepost.create(signer=account.address, request_id="order-7", to=SINK, value_wei=7)
        for milestone, states in (
            ("allocated", {"ALLOCATED", "SUBMITTED", "TRACKING", "CONFIRMED"}),
            ("submitted", {"SUBMITTED", "TRACKING", "CONFIRMED"}),
            ("mined", {"TRACKING", "CONFIRMED"}),
            ("confirmed", {"CONFIRMED"}),
        ):
            reached = await fencepost.wait_for(tx_id, milestone)
            assert reached is not None
            assert reached.state in states
        got = await fencepost.get(tx_id)
        assert got is not None
        same = await fencepost.by_request(account.address, "order-7")
        assert same is not None
        assert (same.tx_id, same.version, same.mined) == (tx_id, got.version, got.mined)
        assert (got.nonce, got.intent.call.value_wei, got.intent.call.to) == (0, 7, SINK)
        assert got.mined is not None
        assert got.mined.succeeded
        assert await fencepost.get(uuid4()) is None
        assert await fencepost.by_request(account.address, "order-8") is None
        with pytest.raises(InvalidRequest, match="none of"):
            await fencepost.wait_for(tx_id, "finished")
        with pytest.raises(UnknownSigner):
            await fencepost.create(signer=SINK, to=SINK)
        with pytest.raises(InvalidRequest, match="checksum"):
            await fencepost.create(signer=account.address, to="0x" + "aB" * 20)
    assert await book.states(account) == {"CONFIRMED": 1}


async def test_wait_for_gives_the_transaction_as_it_is_when_time_is_up(dsn: str, by_hand: OwnChain) -> None:
    account = by_hand.accounts[0]
    async with open_fencepost(dsn, by_hand, account) as fencepost:
        tx_id = await fencepost.create(signer=account.address, to=SINK, value_wei=1)
        await fencepost.wait_for(tx_id, "submitted")
        as_it_is = await fencepost.wait_for(tx_id, "confirmed", timeout_s=0.1)
    assert as_it_is is not None
    assert as_it_is.state == "SUBMITTED"


async def test_an_error_of_the_caller_comes_out_as_it_is(dsn: str, at_once: OwnChain) -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_fencepost(dsn, at_once, at_once.accounts[0]):
            raise ZeroDivisionError


def transfer(context: NonceContext, *, value_wei: int = 1, nonce: int | None = None) -> UnsignedTx:
    return UnsignedTx(
        chain_id=context.signer.chain_id,
        nonce=context.nonce if nonce is None else nonce,
        call=Call(SINK, value_wei=value_wei),
        gas=21_000,
        fees=context.fees,
    )


async def test_a_handler_gets_a_nonce_and_its_transaction_is_mined(
    dsn: str, ticking: OwnChain, book: Book
) -> None:
    account = ticking.accounts[0]
    given: list[NonceContext] = []

    async def unsigned(context: NonceContext) -> UnsignedTx:
        given.append(context)
        return transfer(context, value_wei=5)

    async def signed(context: NonceContext) -> bytes:
        given.append(context)
        fields = {
            "chainId": context.signer.chain_id,
            "nonce": context.nonce,
            "to": bytes.fromhex(SINK[2:]),
            "value": 6,
            "gas": 21_000,
            "maxFeePerGas": context.fees.fee_cap_wei,
            "maxPriorityFeePerGas": context.fees.tip_wei,
            "type": 2,
        }
        return bytes(EthAccount.sign_transaction(fields, account.key).raw_transaction)

    async with open_fencepost(dsn, ticking, account) as fencepost:
        for handler in (unsigned, signed):
            tx_id = await fencepost.with_nonce(account.address, handler)
            ended = await fencepost.wait_for(tx_id)
            assert ended is not None
            assert ended.state == "CONFIRMED", ended.error
            assert given[-1].tx_id == tx_id
    assert [context.nonce for context in given] == [0, 1]
    assert [int(tx["value"], 16) for tx in await ticking.mined_from(account.address)] == [5, 6]
    await check_sealed(book)


async def test_a_handler_at_a_node_that_does_not_hold_the_signer_is_asked_all_the_same(
    dsn: str, ticking: OwnChain, book: Book
) -> None:
    """The holder can't ask a function of another process: it lets go, and that process takes the lane."""
    account = ticking.accounts[0]

    async def handler(context: NonceContext) -> UnsignedTx:
        return transfer(context)

    async with open_fencepost(dsn, ticking, account) as holder:
        await holder.wait_for(await holder.create(signer=account.address, to=SINK, value_wei=1))
        async with open_fencepost(dsn, ticking, account) as other:
            ended = await other.wait_for(await other.with_nonce(account.address, handler))
        behind = await holder.wait_for(await holder.create(signer=account.address, to=SINK, value_wei=2))
    assert ended is not None
    assert behind is not None
    assert (ended.state, ended.nonce) == ("CONFIRMED", 1), ended.error
    assert (behind.state, behind.nonce) == ("CONFIRMED", 2)
    await check_sealed(book)


async def failing(_: NonceContext) -> UnsignedTx:
    raise RuntimeError("the shop is closed")


async def with_another_nonce(context: NonceContext) -> UnsignedTx:
    return transfer(context, nonce=context.nonce + 1)


async def no_transaction(_: NonceContext) -> bytes:
    return b"\x02\xc0"


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (failing, "the shop is closed"),
        (with_another_nonce, "given nonce 0"),
        (no_transaction, "the handler failed"),
    ],
)
@pytest.mark.parametrize("mode", ["strict", "pipelined"])
async def test_after_a_handler_fails_a_filler_consumes_its_nonce_and_the_next_request_goes_on(
    dsn: str, ticking: OwnChain, book: Book, *, handler: object, error: str, mode: str
) -> None:
    account = ticking.accounts[0]
    async with open_fencepost(dsn, ticking, account, options={"nonce.mode": mode}) as fencepost:
        failed_id = await fencepost.with_nonce(account.address, handler)  # type: ignore[arg-type]  # as object, for the parameters
        next_id = await fencepost.create(signer=account.address, to=SINK, value_wei=9)
        failed, ended = await fencepost.wait_for(failed_id), await fencepost.wait_for(next_id)
    assert failed is not None
    assert ended is not None
    assert (failed.state, failed.nonce) == ("FAILED", 0)
    assert failed.error is not None
    assert error in failed.error
    assert (ended.state, ended.nonce) == ("CONFIRMED", 1)
    filler, transaction = await ticking.mined_from(account.address)
    assert (filler["to"], int(filler["value"], 16)) == (account.address, 0)
    assert filler["hash"] == failed.hash
    assert int(transaction["value"], 16) == 9
    assert "Fill" in await book.events(failed_id)


async def test_a_nonce_whose_handler_died_with_its_process_is_filled(
    dsn: str, ticking: OwnChain, book: Book
) -> None:
    """The node ends while the handler thinks; the next one can't ask it, and leaves no hole."""
    account = ticking.accounts[0]
    tx_id = await _abandon_a_handler(dsn, ticking, account)
    async with open_fencepost(dsn, ticking, account) as fencepost:
        next_id = await fencepost.create(signer=account.address, to=SINK, value_wei=9)
        ended = await fencepost.wait_for(next_id)
        abandoned = await fencepost.get(tx_id)
    assert ended is not None
    assert abandoned is not None
    assert (abandoned.state, abandoned.nonce) == ("FAILED", 0)
    assert (ended.state, ended.nonce) == ("CONFIRMED", 1)
    await check_sealed(book)


async def _abandon_a_handler(dsn: str, chain: OwnChain, account: Account) -> UUID:
    asked = asyncio.Event()

    async def thinking(_: NonceContext) -> UnsignedTx:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody waits for this")

    async with open_fencepost(dsn, chain, account) as fencepost:
        tx_id = await fencepost.with_nonce(account.address, thinking)
        await asked.wait()
    return tx_id

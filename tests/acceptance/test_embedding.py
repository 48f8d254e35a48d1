"""Use Fencepost inside the caller's own process: the whole facade, on a real chain."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest
from eth_account import Account as EthAccount

from fakes.no_observer import check_waits_without_polling, silence_observers
from fencepost import Call, ManagedTx, NonceContext, StuckDecision, UnsignedTx
from fencepost.errors import InvalidRequest, RequestConflict, UnknownSigner
from fixtures.core import SINK, Account, DatabaseReader, OwnChain, check_sealed, eventually
from fixtures.nodes import open_fencepost


async def test_create_get_by_request_and_wait_for(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader
) -> None:
    account = interval_chain.accounts[0]
    async with open_fencepost(dsn, interval_chain, account) as fencepost:
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
        with pytest.raises(InvalidRequest, match="is not a milestone"):
            await fencepost.wait_for(tx_id, "later")
        with pytest.raises(UnknownSigner):
            await fencepost.create(signer=SINK, to=SINK)
        with pytest.raises(InvalidRequest, match="checksum"):
            await fencepost.create(signer=account.address, to="0x" + "aB" * 20)
    assert await db.states(account) == {"CONFIRMED": 1}


async def test_wait_for_returns_the_transaction_as_it_is_at_the_timeout(
    dsn: str, manual_chain: OwnChain
) -> None:
    account = manual_chain.accounts[0]
    async with open_fencepost(dsn, manual_chain, account) as fencepost:
        tx_id = await fencepost.create(signer=account.address, to=SINK, value_wei=1)
        await fencepost.wait_for(tx_id, "submitted")
        as_it_is = await fencepost.wait_for(tx_id, "confirmed", timeout_s=0.1)
    assert as_it_is is not None
    assert as_it_is.state == "SUBMITTED"


async def test_without_an_observer_waits_end_at_the_commit_and_transactions_end(
    dsn: str, interval_chain: OwnChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence_observers(monkeypatch)
    async with open_fencepost(dsn, interval_chain, interval_chain.accounts[0]) as fencepost:
        await check_waits_without_polling(fencepost, monkeypatch)


async def test_an_error_of_the_caller_is_raised_unchanged(dsn: str, instant_chain: OwnChain) -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_fencepost(dsn, instant_chain, instant_chain.accounts[0]):
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
    dsn: str, interval_chain: OwnChain, db: DatabaseReader
) -> None:
    account = interval_chain.accounts[0]
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

    async with open_fencepost(dsn, interval_chain, account) as fencepost:
        for handler in (unsigned, signed):
            tx_id = await fencepost.with_nonce(account.address, handler)
            ended = await fencepost.wait_for(tx_id)
            assert ended is not None
            assert ended.state == "CONFIRMED", ended.error
            assert given[-1].tx_id == tx_id
    assert [context.nonce for context in given] == [0, 1]
    assert [int(tx["value"], 16) for tx in await interval_chain.mined_from(account.address)] == [5, 6]
    await check_sealed(db)


async def test_a_handler_with_a_request_id_is_called_once(dsn: str, interval_chain: OwnChain) -> None:
    account = interval_chain.accounts[0]
    given: list[NonceContext] = []

    async def handler(context: NonceContext) -> UnsignedTx:
        given.append(context)
        return transfer(context, value_wei=5)

    async with open_fencepost(dsn, interval_chain, account) as fencepost:
        me = account.address
        tx_id = await fencepost.with_nonce(me, handler, request_id="order-7")
        assert await fencepost.with_nonce(me, handler, request_id="order-7") == tx_id
        ended = await fencepost.wait_for(tx_id)
        assert ended is not None
        assert (ended.state, ended.request_id) == ("CONFIRMED", "order-7")
        assert await fencepost.with_nonce(me, handler, request_id="order-7") == tx_id
        found = await fencepost.by_request(me, "order-7")
        assert found is not None
        assert found.tx_id == tx_id
        await fencepost.create(signer=me, request_id="plain", to=me)  # the payload of a handler's request
        with pytest.raises(RequestConflict):
            await fencepost.with_nonce(me, handler, request_id="plain")
        with pytest.raises(InvalidRequest):
            await fencepost.with_nonce(me, handler, request_id="")
        assert set(fencepost.running.handlers) <= {tx_id}
    assert len(given) == 1


async def test_a_stuck_hook_passed_to_open_decides(dsn: str, manual_chain: OwnChain) -> None:
    account = manual_chain.accounts[0]
    asked: list[ManagedTx] = []

    async def hook(tx: ManagedTx) -> StuckDecision:
        asked.append(tx)
        return "filler"

    options = {"resubmit.interval": "100ms", "resubmit.max_attempts": "1", "confirmations.required": "0"}
    async with open_fencepost(dsn, manual_chain, account, options=options, stuck_hook=hook) as fencepost:
        tx_id = await fencepost.create(signer=account.address, to=SINK, value_wei=1)

        async def is_filled() -> bool:
            if asked:
                await manual_chain.mine()
            tx = await fencepost.get(tx_id)
            return tx is not None and tx.is_terminal

        await eventually(is_filled)
    assert asked[0].tx_id == tx_id


async def test_a_handler_is_called_on_a_node_that_does_not_hold_the_signer(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader
) -> None:
    """The lease holder cannot call a function of another process: it releases the lease, and that process takes the lane."""
    account = interval_chain.accounts[0]

    async def handler(context: NonceContext) -> UnsignedTx:
        return transfer(context)

    async with open_fencepost(dsn, interval_chain, account) as holder:
        await holder.wait_for(await holder.create(signer=account.address, to=SINK, value_wei=1))
        async with open_fencepost(dsn, interval_chain, account) as other:
            ended = await other.wait_for(await other.with_nonce(account.address, handler))
        behind = await holder.wait_for(await holder.create(signer=account.address, to=SINK, value_wei=2))
    assert ended is not None
    assert behind is not None
    assert (ended.state, ended.nonce) == ("CONFIRMED", 1), ended.error
    assert (behind.state, behind.nonce) == ("CONFIRMED", 2)
    await check_sealed(db)


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
async def test_a_filler_consumes_the_nonce_of_a_failed_handler_and_the_next_request_continues(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader, *, handler: object, error: str, mode: str
) -> None:
    account = interval_chain.accounts[0]
    async with open_fencepost(dsn, interval_chain, account, options={"nonce.mode": mode}) as fencepost:
        failed_id = await fencepost.with_nonce(account.address, handler)  # type: ignore[arg-type]  # as object, for the parameters
        next_id = await fencepost.create(signer=account.address, to=SINK, value_wei=9)
        failed, ended = await fencepost.wait_for(failed_id), await fencepost.wait_for(next_id)
    assert failed is not None
    assert ended is not None
    assert (failed.state, failed.nonce) == ("FAILED", 0)
    assert failed.error is not None
    assert error in failed.error
    assert (ended.state, ended.nonce) == ("CONFIRMED", 1)
    filler, transaction = await interval_chain.mined_from(account.address)
    assert (filler["to"], int(filler["value"], 16)) == (account.address, 0)
    assert filler["hash"] == failed.hash
    assert int(transaction["value"], 16) == 9
    assert "Fill" in await db.events(failed_id)


async def test_a_nonce_whose_handler_died_with_its_process_is_filled(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader
) -> None:
    """The node stops while the handler runs. The next node cannot call the handler, and leaves no nonce gap."""
    account = interval_chain.accounts[0]
    tx_id = await _abandon_a_handler(dsn, interval_chain, account)
    async with open_fencepost(dsn, interval_chain, account) as fencepost:
        next_id = await fencepost.create(signer=account.address, to=SINK, value_wei=9)
        ended = await fencepost.wait_for(next_id)
        abandoned = await fencepost.get(tx_id)
    assert ended is not None
    assert abandoned is not None
    assert (abandoned.state, abandoned.nonce) == ("FAILED", 0)
    assert (ended.state, ended.nonce) == ("CONFIRMED", 1)
    await check_sealed(db)


async def _abandon_a_handler(dsn: str, chain: OwnChain, account: Account) -> UUID:
    asked = asyncio.Event()

    async def thinking(_: NonceContext) -> UnsignedTx:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("nothing awaits this handler")

    async with open_fencepost(dsn, chain, account) as fencepost:
        tx_id = await fencepost.with_nonce(account.address, thinking)
        await asked.wait()
    return tx_id

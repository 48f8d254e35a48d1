"""kill -9 at every point where it can hurt; another node goes on. Each request is mined exactly once, without a hole."""

from __future__ import annotations

import signal
from itertools import groupby

import pytest

from fencepost.domain.transaction import Fees
from fix_core import GWEI, Account, Book, Client, OwnChain, check_all_mined_once, eventually
from fix_nodes import Failpoint, StartNode, open_fencepost

COUNT = 6
# Three at a time: when the node dies at its second send or commit, some are mined, some are out, some are queued.
OPTIONS = {
    "lease.duration": "1s",
    "lease.renew_interval": "200ms",
    "nonce.mode": "pipelined",
    "nonce.max_in_flight": "3",
}

POINTS = [
    *(Failpoint(at, when) for at in ("sign", "send", "receipts") for when in ("before", "after")),
    *(
        Failpoint(f"commit:{event}", when)
        for event in ("BeginSequence", "AssignNonce", "SendResult", "ReceiveReceipt", "Finish")
        for when in ("before", "after")
    ),
    Failpoint("send", "after", nth=2),
    Failpoint("commit:AssignNonce", "after", nth=2),
]


def named(point: Failpoint) -> str:
    return f"{point.when}-{point.at}-{point.nth}"


IN_STRICT_MODE = [
    Failpoint("commit:AssignNonce", "after"),
    Failpoint("send", "after"),
    Failpoint("commit:ReceiveReceipt", "before"),
    Failpoint("commit:Finish", "before"),
]


@pytest.mark.parametrize(
    ("mode", "point"),
    [
        *(pytest.param("pipelined", point, id=f"pipelined-{named(point)}") for point in POINTS),
        *(pytest.param("strict", point, id=f"strict-{named(point)}") for point in IN_STRICT_MODE),
    ],
)
async def test_whoever_dies_anywhere_each_request_is_mined_once(
    dsn: str,
    ticking: OwnChain,
    book: Book,
    client: Client,
    start_node: StartNode,
    *,
    point: Failpoint,
    mode: str,
) -> None:
    account = ticking.accounts[0]
    count = COUNT if mode == "pipelined" else 2
    await client.ask(account, count)
    options = OPTIONS | {"nonce.mode": mode}
    doomed = start_node(ticking, account, name="doomed", options=options, failpoints=[point])
    assert await doomed.ended() == -signal.SIGKILL, doomed.said()
    async with open_fencepost(dsn, ticking, account, options=options):
        await book.until_states(account, CONFIRMED=count)
    await check_all_mined_once(book, ticking, account, count)
    terms = await book.terms(account)
    owners = [name == "doomed" for name, _ in groupby(term["owner_node"] for term in terms)]
    assert owners == [True, False]  # a busy machine may make either of them lose its lease, and take it again


@pytest.mark.parametrize("event", ["BeginSequence", "AssignNonce", "SendResult", "ReceiveReceipt", "Finish"])
async def test_a_commit_whose_answer_is_lost_is_read_back_and_not_repeated(
    ticking: OwnChain, book: Book, client: Client, start_node: StartNode, event: str
) -> None:
    """The same node goes on, in a new term."""
    account = ticking.accounts[0]
    await client.ask(account, COUNT)
    lost = Failpoint(f"commit:{event}", "after", "lose_answer")
    node = start_node(ticking, account, options=OPTIONS, failpoints=[lost])
    await book.until_states(account, CONFIRMED=COUNT)
    await check_all_mined_once(book, ticking, account, COUNT)
    assert "struck" in node.said()
    assert len(await book.terms(account)) == 2
    given = await book.connection.fetch("SELECT tx_id FROM journal WHERE event = 'AssignNonce'")
    assert len(given) == len({row["tx_id"] for row in given}) == COUNT


async def test_a_commit_that_never_happened_is_made_again(
    ticking: OwnChain, book: Book, client: Client, start_node: StartNode
) -> None:
    """Between sign and commit the connection breaks: nothing was stored, so the same nonces are given again."""
    account = ticking.accounts[0]
    await client.ask(account, COUNT)
    broken = Failpoint("commit:AssignNonce", "before", "lose_answer")
    node = start_node(ticking, account, options=OPTIONS, failpoints=[broken])
    await book.until_states(account, CONFIRMED=COUNT)
    await check_all_mined_once(book, ticking, account, COUNT)
    assert "struck" in node.said()


BUMPING = OPTIONS | {
    "resubmit.interval": "100ms",
    "fees.bump.enabled": "true",
    "fees.bump.after_resubmits": "1",
}


@pytest.mark.parametrize(
    "point",
    [
        Failpoint("commit:Bump", "before"),
        Failpoint("commit:Bump", "after"),
        Failpoint("sign", "after", nth=2),
        Failpoint("commit:Bump", "after", nth=2),
    ],
    ids=named,
)
async def test_dying_in_a_fee_bump_leaves_two_sets_of_bytes_and_one_transaction(
    dsn: str, by_hand: OwnChain, book: Book, client: Client, start_node: StartNode, *, point: Failpoint
) -> None:
    account = by_hand.accounts[0]
    ids = await client.ask(account, 2, fees=Fees(fee_cap_wei=10 * GWEI, tip_wei=GWEI))
    doomed = start_node(by_hand, account, name="doomed", options=BUMPING, failpoints=[point])
    assert await doomed.ended() == -signal.SIGKILL, doomed.said()
    before = await book.attempts(ids[0])
    async with open_fencepost(dsn, by_hand, account, options=BUMPING | {"resubmit.interval": "60s"}):
        await _all_in_pool(by_hand, account, 2)
        await book.until_event(ids[0], "SendResult", times=2)
        await by_hand.mine(3)
        await book.until_states(account, CONFIRMED=2)
    await check_all_mined_once(book, by_hand, account, 2)
    after = await book.attempts(ids[0])
    assert [row["tx_hash"] for row in after[: len(before)]] == [row["tx_hash"] for row in before]
    caps = [row["fee_cap_wei"] for row in after]
    assert caps == sorted(set(caps))


async def _all_in_pool(chain: OwnChain, account: Account, count: int) -> None:
    async def are_there() -> bool:
        return await chain.nonce(account.address, "pending") == count

    await eventually(are_there)


async def test_all_nodes_die_one_after_the_other_and_the_last_one_finishes(
    dsn: str, ticking: OwnChain, book: Book, client: Client, start_node: StartNode
) -> None:
    account = ticking.accounts[0]
    await client.ask(account, 12)
    for point in (
        Failpoint("send", "after"),
        Failpoint("commit:AssignNonce", "after"),
        Failpoint("commit:SendResult"),
    ):
        doomed = start_node(ticking, account, options=OPTIONS, failpoints=[point])
        assert await doomed.ended() == -signal.SIGKILL, doomed.said()
    async with open_fencepost(dsn, ticking, account, options=OPTIONS):
        await book.until_states(account, CONFIRMED=12)
    await check_all_mined_once(book, ticking, account, 12)
    tokens = [term["fencing_token"] for term in await book.terms(account)]
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 4

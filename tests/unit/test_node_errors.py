"""The table of node errors: every text we know of, by category, as nodes really write it."""

from __future__ import annotations

import re
import time

import pytest

from fencepost.adapters.evm.merge import PRECEDENCE, merge
from fencepost.adapters.evm.node_errors import MESSAGE_CHARS_MAX, classify, shorten
from fencepost.domain.send import SendCategory, SendResult

C = SendCategory

SAID: tuple[tuple[SendCategory, str], ...] = (
    (C.ALREADY_KNOWN, "already known"),
    (C.ALREADY_KNOWN, "known transaction: 0x6b1a"),
    (C.ALREADY_KNOWN, "Known transaction"),
    (C.ALREADY_KNOWN, "AlreadyKnown, the transaction is already in the pool"),
    (C.ALREADY_KNOWN, "OwnNonceAlreadyUsed"),
    (C.ALREADY_KNOWN, "transaction already imported"),
    (C.ALREADY_KNOWN, "Transaction with the same hash was already imported."),
    (C.ALREADY_KNOWN, "existing txn with same hash"),
    (C.ALREADY_KNOWN, "submit transaction to pool failed: Pool(AlreadyImported(Any { .. }))"),
    (C.ALREADY_KNOWN, "tx already exists in cache"),
    (C.ALREADY_MINED, "transaction already finalized"),
    (C.ALREADY_MINED, "the transaction was already mined"),
    (C.NONCE_TOO_LOW, "nonce too low"),
    (C.NONCE_TOO_LOW, "nonce too low: next nonce 82, tx nonce 81"),
    (C.NONCE_TOO_LOW, "Nonce too low"),
    (C.NONCE_TOO_LOW, "Transaction nonce is too low. Try incrementing the nonce."),
    (C.NONCE_TOO_LOW, "OldNonce, Current nonce: 5, nonce of rejected tx: 3"),
    (C.NONCE_TOO_LOW, "invalid transaction nonce"),
    (C.NONCE_TOO_LOW, "submit transaction to pool failed: Pool(Stale)"),
    (C.NONCE_TOO_LOW, "Pool(InvalidTransaction(InvalidTransaction::Stale))"),
    (C.NONCE_TOO_LOW, "account sequence mismatch, expected 7, got 4: incorrect account sequence"),
    (C.NONCE_TOO_LOW, "transaction nonce 4 below sender account nonce 7"),
    (C.NONCE_TOO_HIGH, "nonce too high"),
    (C.NONCE_TOO_HIGH, "nonce too high: address 0x00, tx: 9 state: 7"),
    (C.NONCE_TOO_HIGH, "NonceGap, Future nonce. Expected nonce: 5"),
    (C.NONCE_TOO_HIGH, "Nonce too far in the future"),
    (C.NONCE_TOO_HIGH, "nonce too far in future"),
    (C.NONCE_TOO_HIGH, "Transaction nonce is too distant from current sender nonce"),
    (C.NONCE_TOO_HIGH, "An invalid transaction with a lower nonce exists"),
    (C.NONCE_TOO_HIGH, "Nonce too high. Expected nonce to be 5 but got 6."),
    (C.REPLACEMENT_UNDERPRICED, "replacement transaction underpriced"),
    (C.REPLACEMENT_UNDERPRICED, "Replacement transaction underpriced. A gasPrice of at least 2 is necessary"),
    (C.REPLACEMENT_UNDERPRICED, "insufficient gas price to replace existing transaction"),
    (C.REPLACEMENT_UNDERPRICED, "INTERNAL_ERROR: could not replace existing tx"),
    (C.REPLACEMENT_UNDERPRICED, "there is another tx which has the same nonce in the tx pool"),
    (
        C.REPLACEMENT_UNDERPRICED,
        "Transaction gas price is too low. There is another transaction with same nonce in the queue.",
    ),
    (C.REPLACEMENT_UNDERPRICED, "ReplacementNotAllowed"),
    (C.UNDERPRICED, "transaction underpriced"),
    (C.UNDERPRICED, "transaction underpriced: gas tip cap 0, minimum needed 1"),
    (C.UNDERPRICED, "transaction gas price below minimum: gas tip cap 1, minimum needed 25"),
    (C.UNDERPRICED, "FeeTooLow, MaxFeePerGas too low"),
    (C.UNDERPRICED, "FeeTooLowToCompete"),
    (C.UNDERPRICED, "Gas price below configured minimum gas price"),
    (C.UNDERPRICED, "Gas price below current base fee"),
    (C.UNDERPRICED, "max fee per gas less than block base fee: address 0x00, maxFeePerGas: 1 baseFee: 2"),
    (
        C.UNDERPRICED,
        "Transaction maxFeePerGas (1) is too low for the next block, which has a baseFeePerGas of 2",
    ),
    (C.UNDERPRICED, "fee too low"),
    (C.UNDERPRICED, "gasprice is less than gas price minimum floor"),
    (C.UNDERPRICED, "gas price too low: 1 wei, use at least tx.gasPrice = 2 wei"),
    (C.POOL_FULL, "txpool is full"),
    (C.POOL_FULL, "account limit exceeded: pooled 64 txs"),
    (C.POOL_FULL, "queue full"),
    (C.POOL_FULL, "pending tx pool full"),
    (C.POOL_FULL, "pending sub-pool is full"),
    (C.POOL_FULL, "INTERNAL_ERROR: spammer"),
    (C.POOL_FULL, "There are too many transactions in the queue. Your transaction was dropped due to limit."),
    (C.POOL_FULL, "future transaction tries to replace pending"),
    (C.DELEGATED_LIMIT, "in-flight transaction limit reached for delegated accounts"),
    (C.DELEGATED_LIMIT, "gapped-nonce tx from delegated accounts"),
    (C.DELEGATED_LIMIT, "authority already reserved"),
    (C.TYPE_CONFLICT, "address already reserved"),
    (C.TYPE_CONFLICT, "pending transaction type conflict"),
    (C.TYPE_CONFLICT, "can't replace blob-txn in the pool"),
    (C.INSUFFICIENT_FUNDS, "insufficient funds for gas * price + value: balance 0, tx cost 1, overshot 1"),
    (C.INSUFFICIENT_FUNDS, "Insufficient funds for gas * price + value"),
    (C.INSUFFICIENT_FUNDS, "insufficient balance for transfer"),
    (C.INSUFFICIENT_FUNDS, "transaction would cause overdraft"),
    (C.INSUFFICIENT_FUNDS, "InsufficientFunds, Account balance: 0, cumulative cost: 1"),
    (C.INSUFFICIENT_FUNDS, "Upfront cost exceeds account balance"),
    (C.INSUFFICIENT_FUNDS, "not enough funds for gas"),
    (C.INSUFFICIENT_FUNDS, "Sender doesn't have enough funds to send tx."),
    (C.FEE_CAP_EXCEEDED, "tx fee (1.20 ether) exceeds the configured cap (1.00 ether)"),
    (C.FEE_CAP_EXCEEDED, "Transaction fee cap exceeded"),
    (C.FATAL, "intrinsic gas too low"),
    (C.FATAL, "intrinsic gas too low: gas 100, minimum needed 21000"),
    (C.FATAL, "intrinsic gas too high -- tx.gas_limit > env.block.gas_limit"),
    (C.FATAL, "Intrinsic gas exceeds gas limit"),
    (C.FATAL, "insufficient gas for floor data gas cost: gas 21000, minimum needed 30000"),
    (C.FATAL, "exceeds block gas limit"),
    (C.FATAL, "Transaction gas limit of 9 exceeds block gas limit of 8"),
    (C.FATAL, "transaction gas limit too high (cap: 16777216, tx: 30000000)"),
    (C.FATAL, "gas limit reached"),
    (C.FATAL, "oversized data: transaction size 200000, limit 131072"),
    (C.FATAL, "max initcode size exceeded: code size 60000, limit 49152"),
    (C.FATAL, "invalid sender"),
    (C.FATAL, "Invalid signature"),
    (C.FATAL, "sender not an eoa: address 0x00"),
    (C.FATAL, "invalid chain id for signer: have 1 want 31337"),
    (C.FATAL, "Wrong chainId"),
    (C.FATAL, "unsupported transaction type"),
    (C.FATAL, "transaction type not supported"),
    (C.FATAL, "only replay-protected (EIP-155) transactions allowed over RPC"),
    (C.FATAL, "tip above fee cap"),
    (C.FATAL, "max priority fee per gas higher than max fee per gas"),
    (C.FATAL, "max priority fee per gas cannot be greater than max fee per gas"),
    (C.FATAL, "InvalidMaxPriorityFeePerGas: Cannot be higher than MaxFeePerGas."),
    (C.FATAL, "execution reverted"),
    (C.FATAL, "forbidden sender address"),
    (C.TERMINALLY_STUCK, "not enough keccak counters to continue the execution"),
    (C.TERMINALLY_STUCK, "out of counters at node level (Steps)"),
    (C.NODE_NOT_READY, "node is syncing"),
    (C.NODE_NOT_READY, "sync is still in progress"),
    (C.NODE_NOT_READY, "Transaction pool not enabled"),
    (C.NODE_NOT_READY, "Too Many Requests"),
    (C.NODE_NOT_READY, "daily request count exceeded, request rate limited"),
    (C.NODE_NOT_READY, "http://127.0.0.1:8545: answered HTTP 503"),
    (C.UNKNOWN, ""),
    (C.UNKNOWN, "http://127.0.0.1:8545: time-out"),
    (C.UNKNOWN, "http://127.0.0.1:8545: answered HTTP 500"),
    (C.UNKNOWN, "something nobody has seen before"),
)


@pytest.mark.parametrize(("category", "text"), SAID)
def test_what_nodes_say(category: SendCategory, text: str) -> None:
    assert classify(text).category is category
    assert classify(f"ERR: {text.upper()} (-32000)").category is category


def test_every_category_has_a_text() -> None:
    assert {category for category, _ in SAID} == set(C) - {C.ACCEPTED}


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("unknown transaction", C.UNKNOWN),
        ("undetermined", C.UNKNOWN),
        ("transaction is not mined", C.UNKNOWN),
        ("waiting for it to be mined", C.UNKNOWN),
        # A contract's own words are not the node's.
        ("execution reverted: nonce too low", C.FATAL),
        ("execution reverted: already known", C.FATAL),
        # Hardhat mines what reverts, and still answers with an error.
        (
            "VM Exception while processing transaction: reverted with reason string 'invalid signature'",
            C.UNKNOWN,
        ),
    ],
)
def test_what_only_looks_alike(text: str, category: SendCategory) -> None:
    assert classify(text).category is category


@pytest.mark.parametrize(
    ("text", "chain_nonce"),
    [
        ("nonce too low: next nonce 82, tx nonce 81", 82),
        ("nonce too low: address 0x00, tx: 5 state: 6", 6),
        ("Nonce too low. Expected nonce to be 5 but got 3.", 5),
        ("Nonce too high. Expected nonce to be 5 but got 6.", 5),
        ("OldNonce, Current nonce: 5, nonce of rejected tx: 3", 5),
        ("nonce too high. allowed nonce range: 4 - 54, actual: 60", 4),
        ("transaction nonce 4 below sender account nonce 7", 7),
        ("account sequence mismatch, expected 7, got 4: incorrect account sequence", 7),
        ("nonce too low: next nonce 99999999999999999999, tx nonce 1", None),
        ("nonce too low", None),
        ("replacement transaction underpriced, next nonce 3", None),
    ],
)
def test_numbers_are_kept(text: str, chain_nonce: int | None) -> None:
    assert classify(text).chain_nonce == chain_nonce


@pytest.mark.parametrize("status", [408, 429, 502, 503])
def test_a_busy_status_counts_when_the_text_says_nothing(status: int) -> None:
    assert classify("<html>oops</html>", http_status=status).category is C.NODE_NOT_READY
    assert classify("already known", http_status=status).category is C.ALREADY_KNOWN


def test_codes_count_only_when_the_text_says_nothing() -> None:
    assert classify("no", rpc_code=429).category is C.NODE_NOT_READY
    assert classify("limit", rpc_code=-32005).category is C.NODE_NOT_READY
    assert classify("nonce too low", rpc_code=-32005).category is C.NONCE_TOO_LOW
    assert classify("no", rpc_code=-32000, http_status=500).category is C.UNKNOWN


def test_operators_patterns_come_first() -> None:
    own = [(C.POOL_FULL, re.compile(r"sequencer overloaded|nonce too low", re.IGNORECASE))]
    assert classify("Sequencer OVERLOADED", extra=own).category is C.POOL_FULL
    assert classify("nonce too low", extra=own).category is C.POOL_FULL
    assert classify("nonce too high", extra=own).category is C.NONCE_TOO_HIGH


@pytest.mark.parametrize(
    "text",
    [
        "could not reach https://user:s3cretpass@node.example/v3/0123456789abcdef0123456789abcdef?x=s3cretpass",
        "wss://node.example/s3cretpass closed",
        "Authorization: Bearer s3cretpass.abc",
        "invalid api key s3cretpass",
        'bad request {"apiKey":"s3cretpass"}',
        "?token=s3cretpass&x=1",
        "postgres user:s3cretpass@host",
        "project 0123456789abcdef0123456789abcdef is over its limit",
    ],
)
def test_secrets_leave_the_message(text: str) -> None:
    message = classify(text).message
    assert "s3cretpass" not in message
    assert "0123456789abcdef" not in message


def test_what_helps_stays_in_the_message() -> None:
    tx_hash = "0x" + "ab" * 32
    assert shorten(f"known transaction: {tx_hash}") == f"known transaction: {tx_hash}"
    assert shorten("token transfer failed") == "token transfer failed"
    assert shorten("two\n lines\x00") == "two lines"


def test_messages_are_bounded_and_fast_whatever_comes() -> None:
    assert len(classify("x" * 10_000).message) == MESSAGE_CHARS_MAX
    started = time.process_time()
    for nasty in (
        ":" * 10**6,
        "a:" * 10**6,
        "max priority fee per gas " * 10**5,
        "not enough " * 10**5,
        "key=" * 10**6,
    ):
        assert len(classify(nasty).message) <= MESSAGE_CHARS_MAX
    assert time.process_time() - started < 5


# What several nodes said to the same bytes.


def verdict(*categories: SendCategory) -> SendCategory:
    forth = merge([SendResult(category) for category in categories]).category
    assert forth is merge([SendResult(category) for category in reversed(categories)]).category
    return forth


def test_every_category_has_its_place() -> None:
    assert sorted(category for category, _ in PRECEDENCE) == sorted(C)
    assert all(reason for _, reason in PRECEDENCE)


@pytest.mark.parametrize("other", [category for category in C if category is not C.ACCEPTED])
def test_one_node_that_took_it_is_enough(other: SendCategory) -> None:
    assert verdict(C.ACCEPTED, other) is C.ACCEPTED


@pytest.mark.parametrize("maybe", [C.UNKNOWN, C.NODE_NOT_READY, C.FEE_CAP_EXCEEDED, C.NONCE_TOO_LOW])
@pytest.mark.parametrize(
    "refusal",
    [
        C.FATAL,
        C.TERMINALLY_STUCK,
        C.INSUFFICIENT_FUNDS,
        C.UNDERPRICED,
        C.REPLACEMENT_UNDERPRICED,
        C.POOL_FULL,
        C.NONCE_TOO_HIGH,
        C.DELEGATED_LIMIT,
        C.TYPE_CONFLICT,
    ],
)
def test_what_may_be_out_beats_a_refusal(maybe: SendCategory, refusal: SendCategory) -> None:
    assert verdict(maybe, refusal) is maybe


def test_a_request_fails_only_if_all_agree() -> None:
    assert verdict(C.FATAL, C.FATAL) is C.FATAL
    assert all(verdict(C.FATAL, other) is other for other in C)
    assert verdict(C.UNDERPRICED, C.NONCE_TOO_HIGH) is C.UNDERPRICED


def test_of_two_alike_the_further_chain_counts() -> None:
    behind, ahead = (SendResult(C.NONCE_TOO_LOW, chain_nonce=nonce) for nonce in (7, 9))
    assert merge([behind, ahead]) == merge([ahead, behind]) == ahead


@pytest.mark.parametrize("text", ["Internal error", "internal server error", "Internal JSON-RPC error."])
def test_an_error_without_a_reason_is_about_the_node_and_not_about_the_transaction(text: str) -> None:
    """Another node is asked then; with a reason, the reason counts."""
    assert classify(text, rpc_code=-32603).category is C.NODE_NOT_READY
    assert classify(f"{text}: insufficient funds for gas * price + value").category is C.INSUFFICIENT_FUNDS

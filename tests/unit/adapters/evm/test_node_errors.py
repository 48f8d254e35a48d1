"""The table of endpoint errors: every known text by category, as endpoints really write it."""

from __future__ import annotations

import re
import time

import pytest

from fencepost.adapters.evm.node_errors import MAX_MESSAGE_CHARS, classify, shorten
from fencepost.domain.send_result import SendCategory

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
    (C.TYPE_NOT_SUPPORTED, "unsupported transaction type"),
    (C.TYPE_NOT_SUPPORTED, "transaction type not supported"),
    (C.TYPE_NOT_SUPPORTED, "transaction type not supported: type 2 rejected, pool not yet in London"),
    (
        C.TYPE_NOT_SUPPORTED,
        "EIP-1559 style fee params (maxFeePerGas or maxPriorityFeePerGas) received but they are not supported",
    ),
    (C.TYPE_NOT_SUPPORTED, "EIP-1559 transactions are not supported by the current hardfork"),
    (C.TYPE_NOT_SUPPORTED, "InvalidTxType: Transaction type in EIP1559 is not supported."),
    (
        C.TYPE_NOT_SUPPORTED,
        "Transaction type EIP1559 is invalid, accepted transaction types are [FRONTIER]",
    ),
    (C.TYPE_NOT_SUPPORTED, "rlp: expected input list for types.txdata"),
    (C.TYPE_NOT_SUPPORTED, "Could not decode transaction: invalid RLP: remainder must be zero"),
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
    (C.UNKNOWN, "something unknown"),
)


@pytest.mark.parametrize(("category", "text"), SAID)
def test_known_error_texts_have_their_category(category: SendCategory, text: str) -> None:
    assert classify(text).category is category
    assert classify(f"ERR: {text.upper()} (-32000)").category is category


def test_every_category_has_a_known_text() -> None:
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
def test_similar_texts_are_not_misread(text: str, category: SendCategory) -> None:
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
def test_numbers_in_messages_are_kept(text: str, chain_nonce: int | None) -> None:
    assert classify(text).chain_nonce == chain_nonce


@pytest.mark.parametrize("status", [408, 429, 502, 503])
def test_a_busy_http_status_counts_when_the_text_says_nothing(status: int) -> None:
    assert classify("<html>oops</html>", http_status=status).category is C.NODE_NOT_READY
    assert classify("already known", http_status=status).category is C.ALREADY_KNOWN


def test_error_codes_count_only_when_the_text_says_nothing() -> None:
    assert classify("no", rpc_code=429).category is C.NODE_NOT_READY
    assert classify("limit", rpc_code=-32005).category is C.NODE_NOT_READY
    assert classify("nonce too low", rpc_code=-32005).category is C.NONCE_TOO_LOW
    assert classify("no", rpc_code=-32000, http_status=500).category is C.UNKNOWN


def test_patterns_of_the_operator_come_first() -> None:
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
def test_secrets_are_removed_from_messages(text: str) -> None:
    message = classify(text).message
    assert "s3cretpass" not in message
    assert "0123456789abcdef" not in message


def test_useful_details_stay_in_messages() -> None:
    tx_hash = "0x" + "ab" * 32
    assert shorten(f"known transaction: {tx_hash}") == f"known transaction: {tx_hash}"
    assert shorten("token transfer failed") == "token transfer failed"
    assert shorten("two\n lines\x00") == "two lines"


def test_messages_are_bounded_and_parsed_fast() -> None:
    assert len(classify("x" * 10_000).message) == MAX_MESSAGE_CHARS
    started = time.process_time()
    for nasty in (
        ":" * 10**6,
        "a:" * 10**6,
        "max priority fee per gas " * 10**5,
        "not enough " * 10**5,
        "key=" * 10**6,
    ):
        assert len(classify(nasty).message) <= MAX_MESSAGE_CHARS
    assert time.process_time() - started < 5


@pytest.mark.parametrize("text", ["Internal error", "internal server error", "Internal JSON-RPC error."])
def test_an_error_without_a_reason_concerns_the_endpoint_and_not_the_transaction(text: str) -> None:
    """Another endpoint is called then; with a reason, the reason counts."""
    assert classify(text, rpc_code=-32603).category is C.NODE_NOT_READY
    assert classify(f"{text}: insufficient funds for gas * price + value").category is C.INSUFFICIENT_FUNDS


# ---- texts by client


BY_CLIENT: dict[str, dict[str, C]] = {
    "geth": {
        "transaction gas limit too high (cap: 16777216, tx: 30000000)": C.FATAL,
        "intrinsic gas too low: gas 20000, minimum needed 21000": C.FATAL,
        "gas uint64 overflow": C.FATAL,
        "negative value": C.FATAL,
        "invalid transaction v, r, s values": C.FATAL,
        "nonce too low: next nonce 5, tx nonce 3": C.NONCE_TOO_LOW,
    },
    "reth": {
        "exceeds max transaction gas limit": C.FATAL,
        "gas limit too high": C.FATAL,
        "oversized data: transaction size 131073, limit 131072": C.FATAL,
        "nonce has max value": C.FATAL,
        "transactions before Berlin should not have access list": C.FATAL,
        "transaction priority fee below minimum required priority fee 1000000": C.UNDERPRICED,
        "insufficient funds for gas * price + value: have 1 want 2": C.INSUFFICIENT_FUNDS,
    },
    "op-reth": {
        "exceeds maximum per-transaction gas limit": C.FATAL,
        "invalid transaction: insufficient funds for l1fee + gas * price + value": C.INSUFFICIENT_FUNDS,
    },
    "Anvil": {
        "call gas cost (21000) exceeds the gas limit (100)": C.FATAL,
        "gas floor (22000) exceeds the gas limit (21000)": C.FATAL,
        "transaction gas limit (30000000) is greater than the cap (16777216)": C.FATAL,
        "create initcode size limit": C.FATAL,
        "reject transactions from senders with deployed code": C.FATAL,
        "lack of funds (1) for max fee (2)": C.INSUFFICIENT_FUNDS,
        "nonce overflow in transaction": C.FATAL,
    },
    "Nethermind": {
        "Invalid, TxGasLimitCapExceeded: Gas limit 30000000 exceeded cap of 16777216.": C.FATAL,
        "SenderIsContract": C.FATAL,
        "GasLimitExceeded, Gas limit: 30000000, gas limit of rejected tx: 40000000": C.FATAL,
        "Invalid, IntrinsicGasTooLow: gas limit is below intrinsic gas.": C.FATAL,
        "gas below floor data cost": C.FATAL,
        "failed to recover sender": C.FATAL,
        "transaction cost overflow": C.FATAL,
        "delegation nonce gap": C.DELEGATED_LIMIT,
        "delegation authority has pending transaction": C.DELEGATED_LIMIT,
        "MaxTxSizeExceeded, tx size 200000 exceeds max tx size 131072": C.FATAL,
        "InvalidTxChainId: Expected 1, got 5.": C.FATAL,
        "InvalidTxSignature: Signature is invalid.": C.FATAL,
        "FailedToResolveSender": C.FATAL,
        "Int256Overflow, Sum of all transactions overflowed": C.FATAL,
        "NotSupportedTxType, TxType FrameTx is not supported": C.FATAL,
        "FeeTooLowToCompete": C.UNDERPRICED,
        "NonceTooFarInFuture": C.NONCE_TOO_HIGH,
        "PendingTxsOfConflictingType": C.TYPE_CONFLICT,
        "NotCurrentNonceForDelegation": C.DELEGATED_LIMIT,
        "DelegatorHasPendingTx": C.DELEGATED_LIMIT,
    },
    "Erigon": {
        "INTERNAL_ERROR: existing tx with same hash": C.ALREADY_KNOWN,
        "existing txn with same hash": C.ALREADY_KNOWN,
        "INTERNAL_ERROR: mined": C.ALREADY_MINED,
        "INTERNAL_ERROR: gas limit is too high": C.FATAL,
        "initcode too large": C.FATAL,
        "RLPTooLong": C.FATAL,
        "rlp too long": C.FATAL,
        "IntrinsicGas": C.FATAL,
        "GasUintOverflow": C.FATAL,
        "fork supporting this transaction type is not activated yet": C.FATAL,
        "replaced by transaction with higher tip": C.REPLACEMENT_UNDERPRICED,
    },
    "Besu": {
        "Invalid transaction type": C.TYPE_NOT_SUPPORTED,
        "Sender account not authorized to send transactions": C.FATAL,
        "ChainId is required": C.FATAL,
        "ChainId not supported": C.FATAL,
        "Plugin has marked the transaction as invalid": C.FATAL,
        "Transaction gas limit exceeds block gas limit": C.FATAL,
        "Max priority fee per gas exceeds max fee per gas": C.FATAL,
    },
    "Linea": {
        "Gas limit of transaction is greater than the allowed max of 9000000": C.FATAL,
        "Calldata of transaction is greater than the allowed max of 30000": C.FATAL,
        "Transaction line count for module ADD=524306 is above the limit 524288": C.FATAL,
        "sender 0x0 is blocked as appearing on the SDN or other legally prohibited list": C.FATAL,
    },
    "Scroll": {
        "insufficient l1DataFee": C.INSUFFICIENT_FUNDS,
        "invalid transaction: insufficient funds for l1fee + gas * price + value": C.INSUFFICIENT_FUNDS,
    },
    "Hardhat": {
        "Transaction gas limit is 30000000 and exceeds transaction gas cap of 16777216": C.FATAL,
        "Transaction requires at least 21000 gas but got 100": C.FATAL,
        "Nonce too high. Expected nonce to be 5 but got 7. Note that transactions can't be queued": C.NONCE_TOO_HIGH,
        "Nonce too low. Expected nonce to be 5 but got 3.": C.NONCE_TOO_LOW,
    },
    "Ganache": {
        "Transaction's `data`/`input` field is greater than 49152 bytes, which isn't allowed": C.FATAL,
        "the tx doesn't have the correct nonce. account has nonce of: 5 tx has nonce of: 3": C.NONCE_TOO_LOW,
        "the tx doesn't have the correct nonce. account has nonce of: 5 tx has nonce of: 7": C.NONCE_TOO_HIGH,
    },
    "OpenEthereum": {
        "Supplied gas is beyond limit.": C.FATAL,
        "Transaction gas is too low. There is not enough gas to cover minimal cost of the transaction": C.FATAL,
        "Transaction cost exceeds current gas limit. Limit: 1, got: 2": C.FATAL,
        "Sender is banned in local queue.": C.FATAL,
        "Transaction gas price supplied is too low": C.UNDERPRICED,
    },
    "Cosmos": {
        "account sequence mismatch, expected 5, got 7: incorrect account sequence": C.NONCE_TOO_HIGH,
        "account sequence mismatch, expected 7, got 5: incorrect account sequence": C.NONCE_TOO_LOW,
        "invalid nonce; got 7, expected 5: invalid sequence": C.NONCE_TOO_HIGH,
        "tx nonce is higher than account nonce": C.NONCE_TOO_HIGH,
        "tx nonce is lower than account nonce": C.NONCE_TOO_LOW,
    },
    "Arbitrum": {
        "nonce too high: address 0x00, tx: 7 state: 5": C.NONCE_TOO_HIGH,
        "nonce too low: address 0x00, tx: 5 state: 7": C.NONCE_TOO_LOW,
        "max fee per gas less than block base fee: address 0x00, maxFeePerGas: 1, baseFee: 2": C.UNDERPRICED,
        "queue full": C.POOL_FULL,
        "invalid transaction nonce: expected 5, got 7": C.NONCE_TOO_HIGH,
        "invalid transaction nonce: expected 7, got 5": C.NONCE_TOO_LOW,
    },
    "op-geth": {
        "failed to forward tx to sequencer, please try again. Error message: 'nonce too low'": C.NONCE_TOO_LOW,
        "insufficient funds for gas * price + value + operator fee: balance 1, tx cost 2, overshot 1": C.INSUFFICIENT_FUNDS,
    },
    "any": {
        "the transaction has not been mined yet": C.UNKNOWN,
        "transaction was not mined": C.UNKNOWN,
        "waiting to be mined": C.UNKNOWN,
        "transaction has already been mined": C.ALREADY_MINED,
    },
}


@pytest.mark.parametrize(
    ("text", "category"),
    [
        pytest.param(text, category, id=f"{client}: {text[:50]}")
        for client, table in BY_CLIENT.items()
        for text, category in table.items()
    ],
)
def test_error_texts_of_each_client_are_classified(text: str, category: C) -> None:
    assert classify(text, rpc_code=-32000).category is category
    assert classify(text.upper(), rpc_code=-32000).category is category


def test_the_chain_nonce_is_read_in_either_order() -> None:
    assert classify("invalid transaction nonce: expected 5, got 7").chain_nonce == 5

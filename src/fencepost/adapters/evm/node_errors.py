"""Classify the errors that nodes return for a send: one table, and the function that reads it.

Contract
- `classify` takes any text and never raises. A text without a matching row is `UNKNOWN`, which means *possibly sent*.
- Texts decide, not codes: Besu, Anvil and Reth use one code for different things. A code or an HTTP status counts
  only if no row matches the text.
- Rows are tried from top to bottom, the first that matches anywhere in the text wins, ignoring case. The
  order is part of the table: "replacement transaction underpriced" contains "transaction underpriced", and a contract's
  own words (everything behind "execution reverted") must not pass for the node's.
- Where a text tells the nonce that was expected and the one that came, the numbers decide between too low and too high.
- An operator's own rows (`extra`) come before all of ours.
- The message in the result is short and carries no URL, credential or API key: it ends up in rows and logs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from fencepost.domain.send_result import SendCategory, SendResult

Row = tuple[SendCategory, re.Pattern[str]]

MAX_MESSAGE_CHARS: Final = 300
# Endpoints echo calldata, and gateways send whole pages; the reason is always within this many characters.
_MAX_READ_CHARS: Final = 4096
_MAX_NONCE: Final = 2**64 - 1
_BUSY_HTTP_STATUSES: Final = frozenset({408, 429, 502, 503})
# 429: what gateways put into the error object; -32005: "limit exceeded" of EIP-1474.
_BUSY_RPC_CODES: Final = frozenset({429, -32005})


def _rows(category: SendCategory, *patterns: str) -> tuple[Row, ...]:
    return tuple((category, re.compile(pattern, re.IGNORECASE)) for pattern in patterns)


# Rejections that no retry resolves, because they concern the gas limit or the size of these bytes. By client, as found
# in the sources of geth, reth, op-reth, revm (Anvil), Nethermind, Erigon, Besu, Linea, Scroll, Hardhat, Ganache, OpenEthereum.
_GAS_REFUSALS: Final = (
    r"intrinsic ?gas too ?(?:low|high)",
    r"IntrinsicGasTooLow",
    r"\bIntrinsicGas\b",
    r"intrinsic gas exceeds gas limit",
    r"gas cost .{0,40}exceeds the gas limit",
    r"gas floor .{0,40}exceeds the gas limit",
    r"requires at least \d+ gas",
    r"floor data (?:gas )?cost",
    r"transaction gas is too low",
    r"exceeds (?:the )?block(?:'s)? gas limit",
    r"exceeds current gas limit",
    r"exceeds (?:the )?(?:max(?:imum)? )?(?:per-)?transaction gas (?:limit|cap)",
    r"gas limit (?:is )?too high",
    r"gas limit .{0,60}greater than the (?:cap|allowed max)",
    r"TxGasLimitCapExceeded",
    r"\bGasLimitExceeded",
    r"supplied gas is beyond limit",
    r"gas limit reached",
    r"gas ?uint(?:64)? ?overflow",
    r"line count for module .{0,80}(?:above|exceeds) the limit",
)
_SIZE_REFUSALS: Final = (
    r"oversized data",
    r"calldata of transaction is greater than the allowed max",
    r"field is greater than \d+ bytes",
    r"max initcode size exceeded",
    r"init ?code (?:is )?too large",
    r"initcode size limit",
    r"RLP ?too ?long",
    r"MaxTxSizeExceeded",
    r"transaction (?:is )?too large",
)

TABLE: Final[tuple[Row, ...]] = (
    # A contract chooses the text after these two, so they come first. Hardhat mines a transaction that reverts and
    # returns an error all the same: the transaction was sent.
    *_rows(SendCategory.UNKNOWN, r"VM Exception while processing transaction"),
    *_rows(SendCategory.FATAL, r"execution reverted"),
    *_rows(
        SendCategory.ALREADY_KNOWN,
        r"already ?known",
        r"(?<!un)known transaction",
        r"OwnNonceAlreadyUsed",
        r"already ?imported",
        r"existing txn? with same hash",
        r"tx already exists in cache",
    ),
    *_rows(
        SendCategory.ALREADY_MINED,
        r"transaction already finalized",
        # A whole text (Erigon), or a plain statement; "has not been mined yet" is none.
        r"(?:^|: )mined\.?$",
        r"\balready (?:been )?mined\b",
        r"\b(?:was|is|has been) mined\b",
    ),
    # Before the nonce rows: "gapped-nonce" is not a nonce gap of the signer.
    *_rows(
        SendCategory.DELEGATED_LIMIT,
        r"in-flight transaction limit reached for delegated accounts",
        r"gapped-nonce tx from delegated accounts",
        r"authority already reserved",
        r"NotCurrentNonceForDelegation",
        r"DelegatorHasPendingTx",
        r"delegation nonce gap",
        r"delegation authority has pending transaction",
    ),
    *_rows(
        SendCategory.TYPE_CONFLICT,
        r"address already reserved",
        r"pending transaction type conflict",
        r"can't replace blob-txn",
        r"PendingTxsOfConflictingType",
    ),
    # The chain does not know the envelope. geth, Anvil and Hardhat, Ganache, Nethermind, Besu and Erigon, in this order.
    *_rows(
        SendCategory.TYPE_NOT_SUPPORTED,
        r"transaction type not (?:yet )?supported",
        r"EIP-?1559 style fee params",
        r"EIP-?(?:1559|2718|2930)\b.{0,60}not (?:supported|enabled|activated)",
        r"(?:unsupported|invalid|unknown) (?:transaction|tx) type",
        r"InvalidTxType|UnsupportedTxType|TxTypeNotSupported",
        r"transaction type \w+ is invalid, accepted transaction types are",
        # Nodes that know no envelopes at all: geth and Ganache before Berlin.
        r"rlp: expected (?:input )?list for types",
        r"could not decode transaction: invalid RLP",
        r"typed transactions? (?:is |are )?not (?:supported|allowed|enabled)",
    ),
    # Before "too low" and "underpriced": these speak of another transaction at the same nonce.
    *_rows(
        SendCategory.REPLACEMENT_UNDERPRICED,
        r"replacement transaction underpriced",
        r"insufficient gas price to replace existing transaction",
        r"could not replace existing tx",
        r"there is another tx which has the same nonce",
        r"there is another transaction with same nonce in the queue",
        r"ReplacementNotAllowed",
        r"replaced by transaction with higher tip",
    ),
    *_rows(
        SendCategory.NONCE_TOO_LOW,
        r"nonce (?:is )?too low",
        r"OldNonce",
        r"invalid transaction nonce",
        r"Pool\(Stale\)",
        r"InvalidTransaction::Stale",
        r"below sender account nonce",
        r"incorrect account sequence",
        r"invalid nonce\b",
        r"nonce .{0,40}lower than account nonce",
        r"doesn't have the correct nonce",  # ethereumjs, so Ganache: the numbers decide
    ),
    *_rows(
        SendCategory.NONCE_TOO_HIGH,
        r"nonce too high",
        r"NonceGap",
        r"nonce ?too ?far ?in ?(?:the ?)?future",
        r"too distant from current sender nonce",
        r"an invalid transaction with a lower nonce exists",
        r"nonce .{0,40}higher than account nonce",
    ),
    *_rows(
        SendCategory.FEE_CAP_EXCEEDED,
        r"exceeds the configured cap",
        r"transaction fee cap exceeded",
    ),
    # Before the prices: a tip above the fee cap is an error of Fencepost, and no new quote resolves it.
    *_rows(
        SendCategory.FATAL,
        r"tip (?:is )?(?:above|higher than) (?:the )?fee cap",
        r"priority ?fee ?per ?gas.{0,40}(?:higher|greater|above|exceeds).{0,40}max ?fee ?per ?gas",
        r"max (?:priority )?fee per gas higher than 2\^256-1",
    ),
    *_rows(
        SendCategory.UNDERPRICED,
        r"\bunderpriced\b",
        r"gas price below (?:configured )?minimum",
        r"below current base fee",
        r"fee ?too ?low",
        r"max ?fee ?per ?gas less than block base fee",
        r"too low for the next block",
        r"gas ?price is less than gas price minimum",
        r"gas price too low",
        r"gas price supplied is too low",
        r"priority fee below minimum required",
    ),
    *_rows(
        SendCategory.POOL_FULL,
        r"txpool is full",
        r"account limit exceeded",
        r"queue full",
        r"pending tx pool full",
        r"sub-?pool is full",
        r"\bspammer\b",
        r"too many transactions in the queue",
        r"future transaction tries to replace pending",
    ),
    *_rows(
        SendCategory.INSUFFICIENT_FUNDS,
        r"insufficient ?funds",
        r"insufficient balance for transfer",
        r"would cause overdraft",
        r"upfront cost exceeds account balance",
        r"(?:not|n't have) enough funds",
        r"insufficient l1 ?data ?fee",
        r"\black of funds",
    ),
    *_rows(
        SendCategory.TERMINALLY_STUCK,
        r"not enough .{0,60}counters to continue the execution",
        r"out of counters at node level",
    ),
    *_rows(
        SendCategory.FATAL,
        *_GAS_REFUSALS,
        *_SIZE_REFUSALS,
        r"invalid sender",
        r"invalid signature",
        r"sender (?:is )?not an eoa",
        r"SenderIsContract",
        r"senders? with deployed code",
        r"(?:failed to (?:resolve|recover)|FailedToResolve) ?sender",
        r"InvalidTxSignature",
        r"invalid transaction v, r, s values",
        r"sender account not authorized",
        r"(?:sender|recipient|code) is banned",
        r"is blocked as appearing on the",
        r"transaction is not permitted",
        r"plugin has marked the transaction as invalid",
        r"nonce has max value",
        r"nonce overflow",
        r"negative value",
        r"(?:transaction|int256) ?(?:cost )?overflow",
        r"InvalidTxChainId",
        r"ChainId (?:not supported|is required)",
        r"invalid chain ?id",
        r"wrong chain ?id",
        r"invalid transaction type",
        r"InvalidTxType",
        r"NotSupportedTxType",
        r"fork supporting this transaction type is not activated",
        r"before Berlin should not have access list",
        r"only replay-protected .{0,20}transactions allowed",
        r"forbidden sender address",
    ),
    *_rows(
        SendCategory.NODE_NOT_READY,
        r"node is syncing",
        r"sync is still in progress",
        r"transaction pool not enabled",
        r"too many requests",
        r"\brate[- ]?limit",
        r"\bHTTP (?:408|429|502|503)\b",
        r"^internal (?:json-rpc |server )?error\.?$",  # says nothing about the transaction: ask another endpoint
    ),
)

# The chain's nonce, as reported by geth and reth, geth's executor, hardhat, nethermind, zkSync, besu, cosmos.
_CHAIN_NONCE: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"next nonce:? (\d{1,20})",
        r"\btx: \d{1,20},? state: (\d{1,20})",
        r"expected nonce(?: to be)?:? (\d{1,20})",
        r"current nonce:? (\d{1,20})",
        r"allowed nonce range: (\d{1,20})",
        r"below sender account nonce (\d{1,20})",
        r"account sequence mismatch, expected (\d{1,20})",
        r"nonce.{0,20}\bexpected:? (\d{1,20})",
        r"account has nonce of: (\d{1,20})",
    )
)
# Both numbers, if a text that is used for both cases contains them: "expected 5, got 7" is a nonce that is too high.
_NONCE_EXPECTED_AND_GOT: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"expected(?: nonce)?(?: to be)?:? (?P<expected>\d{1,20})[,;]?(?: but)? got:? (?P<got>\d{1,20})",
        r"got:? (?P<got>\d{1,20})[,;]? expected:? (?P<expected>\d{1,20})",
        r"account has nonce of: (?P<expected>\d{1,20}) tx has nonce of: (?P<got>\d{1,20})",
    )
)
_NONCE_CATEGORIES: Final = frozenset({SendCategory.NONCE_TOO_LOW, SendCategory.NONCE_TOO_HIGH})

_SECRETS: Final = (
    (re.compile(r"\b[a-z][a-z0-9+.-]{0,20}://\S+", re.IGNORECASE), "<url>"),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]+", re.IGNORECASE), r"\1 <secret>"),
    (re.compile(r"\b(api[-_ ]?key|project[-_ ]?id)\s+[\w.~+/-]{6,}", re.IGNORECASE), r"\1 <secret>"),
    (
        re.compile(
            r"(key|token|secret|password|passwd|project[-_ ]?id)(\"? ?[:=] ?\"?)[\w.~+/-]{6,}", re.IGNORECASE
        ),
        r"\1\2<secret>",
    ),
    (re.compile(r"[^\s:@/]{1,100}:[^\s:@/]{1,100}@\S+"), "<secret>"),
    # Project ids of gateways: 32 hex digits and no 0x in front. Hashes and addresses have it, and stay.
    (re.compile(r"(?<![0-9a-zA-Z])[0-9a-f]{32}(?![0-9a-zA-Z])", re.IGNORECASE), "<secret>"),
)


def shorten(text: str, *, chars_max: int = MAX_MESSAGE_CHARS) -> str:
    """Return the text on one line, without URLs and credentials, at most `chars_max` long."""
    line = " ".join(text[:_MAX_READ_CHARS].split())
    line = "".join(char for char in line if char.isprintable())
    for pattern, instead in _SECRETS:
        line = pattern.sub(instead, line)
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"


def classify(
    message: str,
    *,
    rpc_code: int | None = None,
    http_status: int | None = None,
    extra: Sequence[Row] = (),
) -> SendResult:
    text = message[:_MAX_READ_CHARS]
    category = _category(text, extra)
    if category is None:
        busy = http_status in _BUSY_HTTP_STATUSES or rpc_code in _BUSY_RPC_CODES
        category = SendCategory.NODE_NOT_READY if busy else SendCategory.UNKNOWN
    chain_nonce = None
    if category in _NONCE_CATEGORIES:
        chain_nonce = _chain_nonce(text)
        category = _low_or_high(text) or category
    return SendResult(category=category, message=shorten(text), chain_nonce=chain_nonce)


def _category(text: str, extra: Sequence[Row]) -> SendCategory | None:
    for category, pattern in (*extra, *TABLE):
        if pattern.search(text):
            return category
    return None


def _low_or_high(text: str) -> SendCategory | None:
    """Compare the two nonces in the text, if it has both; some nodes use the same words for both cases."""
    for pattern in _NONCE_EXPECTED_AND_GOT:
        if found := pattern.search(text):
            expected, got = int(found["expected"]), int(found["got"])
            if got != expected:
                return SendCategory.NONCE_TOO_HIGH if got > expected else SendCategory.NONCE_TOO_LOW
    return None


def _chain_nonce(text: str) -> int | None:
    for pattern in _CHAIN_NONCE:
        if found := pattern.search(text):
            nonce = int(found[1])
            return nonce if nonce <= _MAX_NONCE else None
    return None

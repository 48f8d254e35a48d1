"""What nodes say to a send, and what it means: the one table, and the function that reads it.

Contract
- `classify` takes any text and never raises. What no row knows is `UNKNOWN`, and unknown means *possibly sent*.
- Texts decide, not codes: Besu, Anvil and Reth use one code for different things. A code or an HTTP status is asked
  only when the text said nothing.
- Rows are tried from top to bottom, the first that is found anywhere in the text wins, upper and lower case alike. The
  order is part of the table: "replacement transaction underpriced" contains "transaction underpriced", and a contract's
  own words (everything behind "execution reverted") must not pass for the node's.
- An operator's own rows (`extra`) come before all of ours.
- The message in the result is short and carries no URL, credential or API key: it ends up in rows and logs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from fencepost.domain.send import SendCategory, SendResult

Row = tuple[SendCategory, re.Pattern[str]]

MESSAGE_CHARS_MAX: Final = 300
# Nodes echo calldata and gateways send whole pages; a verdict never stands further in than this.
_READ_CHARS_MAX: Final = 4096
_NONCE_MAX: Final = 2**64 - 1
_BUSY_HTTP_STATUSES: Final = frozenset({408, 429, 502, 503})
# 429: what gateways put into the error object; -32005: "limit exceeded" of EIP-1474.
_BUSY_RPC_CODES: Final = frozenset({429, -32005})


def _rows(category: SendCategory, *patterns: str) -> tuple[Row, ...]:
    return tuple((category, re.compile(pattern, re.IGNORECASE)) for pattern in patterns)


TABLE: Final[tuple[Row, ...]] = (
    # Strangers write what follows these two, so they stand first. Hardhat mines what reverts and complains all the
    # same: the transaction is out.
    *_rows(SendCategory.UNKNOWN, r"VM Exception while processing transaction"),
    *_rows(SendCategory.FATAL, r"execution reverted"),
    *_rows(
        SendCategory.ALREADY_KNOWN,
        r"already ?known",
        r"(?<!un)known transaction",
        r"OwnNonceAlreadyUsed",
        r"already ?imported",
        r"existing txn with same hash",
        r"tx already exists in cache",
    ),
    *_rows(
        SendCategory.ALREADY_MINED,
        r"transaction already finalized",
        r"(?<!not )(?<!yet )(?<!be )\bmined\b",
    ),
    # Before the nonce rows: "gapped-nonce" is not a gap we made.
    *_rows(
        SendCategory.DELEGATED_LIMIT,
        r"in-flight transaction limit reached for delegated accounts",
        r"gapped-nonce tx from delegated accounts",
        r"authority already reserved",
    ),
    *_rows(
        SendCategory.TYPE_CONFLICT,
        r"address already reserved",
        r"pending transaction type conflict",
        r"can't replace blob-txn",
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
    ),
    *_rows(
        SendCategory.NONCE_TOO_HIGH,
        r"nonce too high",
        r"NonceGap",
        r"nonce ?too ?far ?in ?(?:the ?)?future",
        r"too distant from current sender nonce",
        r"an invalid transaction with a lower nonce exists",
    ),
    *_rows(
        SendCategory.FEE_CAP_EXCEEDED,
        r"exceeds the configured cap",
        r"transaction fee cap exceeded",
    ),
    # Before the prices: a tip above the fee cap is our mistake, and no new quote mends it.
    *_rows(
        SendCategory.FATAL,
        r"tip (?:is )?(?:above|higher than) (?:the )?fee cap",
        r"priority ?fee ?per ?gas.{0,40}(?:higher|greater|above|exceeds).{0,40}max ?fee ?per ?gas",
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
    ),
    *_rows(
        SendCategory.TERMINALLY_STUCK,
        r"not enough .{0,60}counters to continue the execution",
        r"out of counters at node level",
    ),
    *_rows(
        SendCategory.FATAL,
        r"intrinsic gas too (?:low|high)",
        r"intrinsic gas exceeds gas limit",
        r"floor data gas cost",
        r"exceeds (?:the )?block gas limit",
        r"transaction gas limit too high",
        r"gas limit reached",
        r"oversized data",
        r"max initcode size exceeded",
        r"invalid sender",
        r"invalid signature",
        r"sender (?:is )?not an eoa",
        r"invalid chain ?id",
        r"wrong chain ?id",
        r"unsupported transaction type",
        r"transaction type not supported",
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
        r"^internal (?:json-rpc |server )?error\.?$",  # and not a word about the transaction: ask another node
    ),
)

# Where the chain stands, in the words of geth and reth, geth's executor, hardhat, nethermind, zkSync, besu, cosmos.
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


def shorten(text: str, *, chars_max: int = MESSAGE_CHARS_MAX) -> str:
    """The text on one line, without what looks like a URL or a credential, and at most `chars_max` long."""
    line = " ".join(text[:_READ_CHARS_MAX].split())
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
    text = message[:_READ_CHARS_MAX]
    category = _category(text, extra)
    if category is None:
        busy = http_status in _BUSY_HTTP_STATUSES or rpc_code in _BUSY_RPC_CODES
        category = SendCategory.NODE_NOT_READY if busy else SendCategory.UNKNOWN
    chain_nonce = _chain_nonce(text) if category in _NONCE_CATEGORIES else None
    return SendResult(category=category, message=shorten(text), chain_nonce=chain_nonce)


def _category(text: str, extra: Sequence[Row]) -> SendCategory | None:
    for category, pattern in (*extra, *TABLE):
        if pattern.search(text):
            return category
    return None


def _chain_nonce(text: str) -> int | None:
    for pattern in _CHAIN_NONCE:
        if found := pattern.search(text):
            nonce = int(found[1])
            return nonce if nonce <= _NONCE_MAX else None
    return None

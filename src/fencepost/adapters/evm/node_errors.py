"""Classify the errors that nodes return for a send: `node_errors.toml` is the table, this module reads it.

Contract
- `classify` takes any text and never raises. A text without a matching row is `UNKNOWN`, which means *possibly sent*.
- Texts decide, not codes: Besu, Anvil and Reth use one code for different things. A code or an HTTP status counts
  only if no row matches the text.
- Rows are tried from top to bottom, the first that matches anywhere in the text wins, ignoring case. The
  order is part of the table: "replacement transaction underpriced" contains "transaction underpriced", and a contract's
  own words (everything behind "execution reverted") must not pass for the node's.
- Where a text tells the nonce that was expected and the one that came, the numbers decide between too low and too high.
- An operator's own rows (`extra`, from the file in `errors.file`) come before all of ours.
- The message in the result is short and carries no URL, credential or API key: it ends up in rows and logs.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.errors import SettingError
from fencepost.settings.files import read_toml

Row = tuple[SendCategory, re.Pattern[str]]

MAX_MESSAGE_CHARS: Final = 300
MAX_PATTERNS: Final = 1000  # of an operator's file
MAX_PATTERN_CHARS: Final = 500
# Endpoints echo calldata, and gateways send whole pages; the reason is always within this many characters.
_MAX_READ_CHARS: Final = 4096
_MAX_NONCE: Final = 2**64 - 1
_BUSY_HTTP_STATUSES: Final = frozenset({408, 429, 502, 503})
# 429: what gateways put into the error object; -32005: "limit exceeded" of EIP-1474.
_BUSY_RPC_CODES: Final = frozenset({429, -32005})
_NONCE_CATEGORIES: Final = frozenset({SendCategory.NONCE_TOO_LOW, SendCategory.NONCE_TOO_HIGH})

# A send that an endpoint accepted has no error, so no text can mean it.
CATEGORIES: Final = tuple(
    category.value for category in SendCategory if category is not SendCategory.ACCEPTED
)


def load_rows(path: Path) -> tuple[Row, ...]:
    """Read an operator's file: `[[rules]]`, each with a category and patterns. Raises `SettingError` for a mistake."""
    table = read_toml(path)
    for key in table:
        if key != "rules":
            raise SettingError(f"{path}: {key[:60]!r} is unknown; write [[rules]] with category and patterns")
    rows = _rows_in(table, path.name)
    if len(rows) > MAX_PATTERNS:
        raise SettingError(f"{path}: {len(rows)} patterns, but at most {MAX_PATTERNS} are allowed")
    return rows


def _rows_in(table: Mapping[str, Any], source: str) -> tuple[Row, ...]:
    rules = table.get("rules", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise SettingError(f"{source}: rules must be tables; write [[rules]]")
    rows: list[Row] = []
    for number, rule in enumerate(rules, start=1):
        category, patterns = rule.get("category"), rule.get("patterns")
        if category not in CATEGORIES:
            raise SettingError(f"{source}, rule {number}: category must be one of {', '.join(CATEGORIES)}")
        if not isinstance(patterns, list) or not patterns or rule.keys() != {"category", "patterns"}:
            raise SettingError(
                f"{source}, rule {number}: must have a category and a list of patterns, nothing else"
            )
        rows += [
            (SendCategory(category), _compiled(pattern, f"{source}, rule {number}")) for pattern in patterns
        ]
    return tuple(rows)


def _compiled(pattern: object, source: str) -> re.Pattern[str]:
    if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_PATTERN_CHARS:
        raise SettingError(f"{source}: a pattern must be a text of 1 to {MAX_PATTERN_CHARS} characters")
    try:
        compiled = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise SettingError(f"{source}: {pattern[:60]!r} is not a regular expression: {error}") from None
    if compiled.search(""):
        raise SettingError(f"{source}: {pattern[:60]!r} matches every text")
    return compiled


_SHIPPED_FILE: Final = "node_errors.toml"
_SHIPPED: Final = tomllib.loads(resources.files(__package__).joinpath(_SHIPPED_FILE).read_text("utf-8"))
TABLE: Final = _rows_in(_SHIPPED, _SHIPPED_FILE)
_CHAIN_NONCE: Final = [_compiled(pattern, _SHIPPED_FILE) for pattern in _SHIPPED["nonces"]["chain"]]
_NONCE_EXPECTED_AND_GOT: Final = [
    _compiled(pattern, _SHIPPED_FILE) for pattern in _SHIPPED["nonces"]["expected_and_got"]
]


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
    row = matching_row(text, extra)
    if row is not None:
        category = row[0]
    else:
        busy = http_status in _BUSY_HTTP_STATUSES or rpc_code in _BUSY_RPC_CODES
        category = SendCategory.NODE_NOT_READY if busy else SendCategory.UNKNOWN
    chain_nonce = None
    if category in _NONCE_CATEGORIES:
        chain_nonce = _chain_nonce(text)
        category = _low_or_high(text) or category
    return SendResult(category=category, message=shorten(text), chain_nonce=chain_nonce)


def matching_row(message: str, extra: Sequence[Row] = ()) -> Row | None:
    """Return the row that decides about a text; None if there is none."""
    text = message[:_MAX_READ_CHARS]
    for row in (*extra, *TABLE):
        if row[1].search(text):
            return row
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

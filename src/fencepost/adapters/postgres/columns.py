"""Declare the columns that lanes write and load: one line per column, and everything else follows from it.

`sources.py` makes the arguments of the statements from these tables, `queries.py` the lists of columns in the statements
(`{{…}}` in `sql/*.sql`), and `rows.py` the decoder of the rows. A migration adds the column to the table in PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec

from fencepost.adapters.postgres.column_arrays import JOINED, LISTED, QUOTED, SCALAR, WORDS, Encoding
from fencepost.adapters.postgres.stored_json import (
    decode_confirmations,
    encode_confirmations,
    encode_receipt,
    encode_sends,
)
from fencepost.application.canonical_payload import canonical, digest, from_payload
from fencepost.application.ports import Cursor, DoneCommand, LaneWrite
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.states import CursorState, State, SubState
from fencepost.domain.struct import Struct
from fencepost.domain.transaction import TxType
from fencepost.domain.transaction_state import Attempt, Kind, ManagedTx, Purpose

MAX_ERROR_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: how its value is read, sent, stored, loaded and decoded.

    `value` reads the value from the row object of its source. The statement gets it as `argument`, of the SQL type `type`.
    `stored` is the SQL expression for the table (`{}` is the argument), and `loaded` the one that reads it back (`{}` is the
    column). `decode` converts a loaded value, at the lane's time, to the value of `field`; a column without a `field` is
    decoded together with others in `rows.py`. A column with `is_set` keeps its value where that returns false.
    """

    name: str
    type: str
    value: Callable[[Any], Any] | None  # None: PostgreSQL sets it, and a load reads it
    encoding: Encoding = WORDS
    argument: str = ""
    stored: str = "{}"
    loaded: str | None = "{}"  # None: lanes do not load it
    field: str | None = None
    decode: Callable[[Any, float], Any] | None = None
    is_set: Callable[[Any], bool] | None = None
    in_queue: bool = True  # whether a QUEUED row can have a value

    @property
    def source_name(self) -> str:
        """Return the name of the argument, which is also the name of the column in the rows of a load."""
        return self.argument or self.name


# ---- what the values are read from: one object per row of a source


class LaneRow(NamedTuple):
    lane: int
    write: LaneWrite
    before: Any  # a Cursor, or _NO_CURSOR
    after: Any


_NO_CURSOR = SimpleNamespace(**dict.fromkeys(Cursor.__struct_fields__))


def lane_row(lane: int, write: LaneWrite) -> LaneRow:
    if write.cursor_after is None:  # the statement does not compare a cursor that it does not change
        return LaneRow(lane, write, _NO_CURSOR, _NO_CURSOR)
    return LaneRow(lane, write, write.cursor_before or _NO_CURSOR, write.cursor_after)


class ChangeRow(Struct, frozen=True):
    """A changed transaction, or a new filler."""

    lane: int
    tx_id: str
    before: ManagedTx
    after: ManagedTx
    now_s: float


class AttemptRow(NamedTuple):
    lane: int
    tx_id: str
    nonce: int
    attempt: Attempt


class CommandRow(NamedTuple):
    lane: int
    done: DoneCommand


# ---- times: the database gets and returns seconds relative to its own clock


def _ago(value: float | None, now_s: float) -> float | None:
    return None if value is None else now_s - value


def _ahead(value: float | None, now_s: float) -> float | None:
    return None if value is None else now_s + value


_SECONDS_SINCE = "extract(epoch FROM clock_timestamp() - {})::float8"
_SECONDS_UNTIL = "extract(epoch FROM {} - clock_timestamp())::float8"
_TIME_AGO = "clock_timestamp() - make_interval(secs => {})"
_TIME_AHEAD = "clock_timestamp() + make_interval(secs => {})"


# ---- values


def _optional(kind: Callable[[Any], Any]) -> Callable[[Any, float], Any]:
    return lambda value, _now_s: kind(value) if value else None


def _error(row: ChangeRow) -> str | None:
    return row.after.error[:MAX_ERROR_CHARS] if row.after.error else None


def _block(row: ChangeRow) -> BlockRef | None:
    mined = row.after.mined
    return mined.block if mined is not None else row.after.lost_at


def _block_number(row: ChangeRow) -> int | None:
    block = _block(row)
    return block.number if block else None


def _block_hash(row: ChangeRow) -> str | None:
    block = _block(row)
    return block.hash if block else None


def _sets_receipt(row: ChangeRow) -> bool:
    return row.after.mined is not row.before.mined


def _receipt(row: ChangeRow) -> str | None:
    mined = row.after.mined
    return encode_receipt(mined.raw) if mined is not None and mined is not row.before.mined else None


def _sets_confirmations(row: ChangeRow) -> bool:
    return row.after.confirmations is not row.before.confirmations


def _confirmations(row: ChangeRow) -> str | None:
    return encode_confirmations(row.after.confirmations) if _sets_confirmations(row) else None


def _sets_sends(row: ChangeRow) -> bool:
    attempts = row.after.attempts
    return attempts is not row.before.attempts and any(attempt.sent_count for attempt in attempts)


def _sends(row: ChangeRow) -> str | None:
    return encode_sends(row.after.attempts) if _sets_sends(row) else None


# ---- transactions: the row object is the NewRequest, or a ChangeRow

# Stored with the request, and never changed.
REQUEST_COLUMNS = (
    Column("tx_id", "uuid", attrgetter("tx_id.hex"), field="tx_id"),
    Column("chain_id", "bigint", attrgetter("signer.chain_id"), in_queue=False),
    Column("signer", "text", attrgetter("signer.address"), in_queue=False),
    Column("request_id", "text", attrgetter("request_id"), QUOTED, field="request_id"),
    Column("kind", "text", attrgetter("kind._value_"), field="kind", decode=lambda value, _: Kind(value)),
    Column("origin", "uuid", attrgetter("origin"), field="origin"),
    Column(
        "payload",
        "text",
        lambda request: canonical(request.intent).decode(),
        JOINED,
        stored="{}::jsonb",
        field="intent",
        decode=lambda value, _: from_payload(value),
    ),
    Column(
        "valid_until",
        "float8",
        attrgetter("valid_for_s"),
        argument="valid_for_s",
        stored=_TIME_AHEAD,
        loaded=_SECONDS_UNTIL,
        field="valid_until_s",
        decode=_ahead,
    ),
    Column(
        "tags",  # as JSON: PostgreSQL's nested arrays must be rectangular
        "text",
        lambda request: msgspec.json.encode(request.tags).decode() if request.tags else None,
        JOINED,
        stored="CASE WHEN {0} IS NULL THEN '{{}}' ELSE ARRAY(SELECT jsonb_array_elements_text({0}::jsonb)) END",
        loaded=None,
    ),
    Column("key_id", "text", attrgetter("key_id"), loaded=None),
)

# Written by every change of a transaction.
TX_COLUMNS = (
    Column(
        "state",
        "text",
        attrgetter("after.state"),
        field="state",
        decode=lambda value, _: State(value),
        in_queue=False,
    ),
    Column("sub_state", "text", attrgetter("after.sub_state"), field="sub_state", decode=_optional(SubState)),
    Column("nonce", "bigint", attrgetter("after.nonce"), field="nonce", in_queue=False),
    Column(
        "ending", "text", attrgetter("after.ending"), field="ending", decode=_optional(State), in_queue=False
    ),
    Column("error", "text", _error, LISTED, field="error"),
    Column("submit_count", "int", attrgetter("after.submit_count"), field="submit_count", in_queue=False),
    Column("journal_count", "int", attrgetter("after.journal_count"), field="journal_count"),
    Column(
        "last_submit_at",
        "float8",
        lambda row: _ago(row.after.last_submit_s, row.now_s),
        argument="submitted_ago_s",
        stored=_TIME_AGO,
        loaded=_SECONDS_SINCE,
        field="last_submit_s",
        decode=_ago,
        in_queue=False,
    ),
    Column(
        "next_resubmit_at",
        "float8",
        lambda row: None if row.after.resubmit_due_s is None else row.after.resubmit_due_s - row.now_s,
        argument="resubmit_in_s",
        stored=_TIME_AHEAD,
        loaded=_SECONDS_UNTIL,
        field="resubmit_due_s",
        decode=_ahead,
        in_queue=False,
    ),
    Column("tx_hash", "text", attrgetter("after.hash"), JOINED, in_queue=False),
    Column("block_number", "bigint", _block_number, in_queue=False),
    Column("block_hash", "text", _block_hash, JOINED, in_queue=False),
    Column("receipt", "text", _receipt, JOINED, stored="{}::json", is_set=_sets_receipt, in_queue=False),
    Column(
        "confirmations",
        "text",
        _confirmations,
        JOINED,
        stored="{}::json",
        is_set=_sets_confirmations,
        field="confirmations",
        decode=lambda value, _: decode_confirmations(value),
        in_queue=False,
    ),
    Column("sends", "text", _sends, JOINED, stored="{}::json", is_set=_sets_sends, loaded=None),
)

# A change names the transaction and the version that the lane loaded.
CHANGE_KEYS = (
    Column("lane", "bigint", attrgetter("lane")),
    Column("tx_id", "uuid", attrgetter("tx_id")),
    Column("version", "bigint", attrgetter("before.version")),
)

# Set by PostgreSQL when a request is stored, or by the fenced statement itself.
_COUNTED_COLUMNS = (
    Column("seq", "bigint", None, field="seq"),
    Column("version", "bigint", None, field="version"),
)

# Fillers have no request. They are inserted with a nonce and signed bytes.
FILLER_COLUMNS = (
    Column("payload", "text", lambda row: canonical(row.after.intent).decode(), JOINED, stored="{}::jsonb"),
    Column("payload_digest", "bytea", lambda row: digest(canonical(row.after.intent)), LISTED),
    *TX_COLUMNS,
)

LOADED_COLUMNS = tuple(
    [column for column in (*REQUEST_COLUMNS, *_COUNTED_COLUMNS, *TX_COLUMNS) if column.loaded is not None]
)

_RECEIVED = Column(
    "created_at",
    "float8",
    None,
    argument="received_ago_s",
    loaded=_SECONDS_SINCE,
    field="received_s",
    decode=_ago,
)
QUEUE_COLUMNS = (*[column for column in LOADED_COLUMNS if column.in_queue], _RECEIVED)

# ---- attempts: the row object is an AttemptRow

ATTEMPT_COLUMNS = (
    Column("tx_id", "uuid", attrgetter("tx_id")),
    Column("attempt", "int", attrgetter("attempt.number"), field="number"),
    Column("nonce", "bigint", attrgetter("nonce"), loaded=None),
    Column(
        "purpose",
        "text",
        attrgetter("attempt.purpose"),
        field="purpose",
        decode=lambda value, _: Purpose(value),
    ),
    Column(
        "tx_type",
        "smallint",
        lambda row: int(row.attempt.type),
        field="type",
        decode=lambda value, _: TxType(value),
    ),
    Column("gas", "bigint", attrgetter("attempt.gas"), field="gas"),
    Column("fee_cap_wei", "numeric", lambda row: str(row.attempt.fees.fee_cap_wei)),
    Column("tip_wei", "numeric", lambda row: str(row.attempt.fees.tip_wei)),
    Column("fee_source", "text", attrgetter("attempt.fee_source"), LISTED, field="fee_source"),
    Column("raw", "bytea", attrgetter("attempt.signed.raw"), LISTED),
    Column("tx_hash", "text", attrgetter("attempt.signed.hash"), JOINED),
)

# ---- cursors: the row object is a LaneRow

CURSOR_COLUMNS = (
    # A NULL in the argument means that the cursor does not change.
    Column("next_nonce", "bigint", attrgetter("after.next_nonce"), field="next_nonce"),
    Column("start_nonce", "bigint", attrgetter("after.start_nonce"), field="start_nonce"),
    Column("is_doubted", "bool", attrgetter("after.is_doubted"), field="is_doubted"),
    Column(
        "state", "text", attrgetter("after.state"), field="state", decode=lambda value, _: CursorState(value)
    ),
    Column("reason", "text", attrgetter("after.reason"), LISTED, field="reason"),
    Column("pause", "text", attrgetter("after.pause"), LISTED, field="pause"),
)

# A lane names its signer, its term, and the cursor that it loaded.
LANE_KEYS = (
    Column("lane", "bigint", attrgetter("lane")),
    Column("chain_id", "bigint", attrgetter("write.term.signer.chain_id")),
    Column("signer", "text", attrgetter("write.term.signer.address")),
    Column("token", "bigint", attrgetter("write.term.token")),
    Column("next_expected", "bigint", attrgetter("before.next_nonce")),
    Column("state_expected", "text", attrgetter("before.state")),
)

# ---- journal batches: the row object is a JournalBatch

JOURNAL_COLUMNS = (
    Column("id_prefix", "text", attrgetter("id_prefix")),
    Column("tx_ids", "text", attrgetter("tx_ids"), JOINED, stored="{}::uuid[]"),
    Column("events", "text", attrgetter("events"), JOINED, stored="{}::text[]"),
    Column("states", "text", attrgetter("states"), JOINED, stored="{}::text[]"),
    Column("details", "text", attrgetter("details"), JOINED, stored="{}::json"),
    Column("node", "text", attrgetter("node"), SCALAR),
)

# ---- operator commands: the row object of a finished one is a CommandRow

COMMAND_COLUMNS = (
    Column("id", "bigint", None, field="id"),
    Column("command", "text", None, field="command"),
    Column("tx_id", "uuid", None, field="tx_id"),
    Column("detail", "jsonb", None, field="detail", decode=lambda value, _: msgspec.json.decode(value)),
    Column("author", "text", None, field="author"),
    Column("reason", "text", None, field="reason"),
    Column("outcome", "text", attrgetter("done.outcome"), LISTED, loaded=None),
    Column("applied", "bool", attrgetter("done.applied"), loaded=None),
)

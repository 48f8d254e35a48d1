"""Journal entries become events: every entry of the source is decided, and ids keep the order of the log."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import fencepost
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Address, BlockHash
from fencepost.domain.states import State
from fencepost.events import types
from fencepost.events.log import BEGINNING, LogEntry, Place, parse_place
from fencepost.events.types import MEANINGS, SILENT, Event, EventType, events_of
from tidy.test_event_names import names_of_entries

PACKAGE = Path(fencepost.__file__).parent
BLOCK = BlockRef(7, BlockHash("0x" + "07" * 32))


def entry(event: str, state: State | None = None, **detail: Any) -> LogEntry:
    return LogEntry(
        Place(1, 2, 3),
        datetime(2026, 1, 1, tzinfo=UTC),
        31_337,
        Address("0x" + "ab" * 20),
        UUID(int=1),
        event,
        state,
        detail,
    )


def kinds(event: str, state: State | None = None, **detail: Any) -> list[str]:
    return [found.type.value for found in events_of(entry(event, state, **detail))]


def test_every_journal_entry_of_the_source_is_an_event_or_silent() -> None:
    decided_in_code = {"Finish", "Fork", "Attach", "SendResult"}
    decided = types._SIMPLE.keys() | SILENT | decided_in_code
    assert names_of_entries() - decided == set()


def test_every_type_is_described() -> None:
    assert set(MEANINGS) == set(EventType)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (State.CONFIRMED, "tx.confirmed"),
        (State.FAILED, "tx.failed"),
        (State.CANCELLED, "tx.cancelled"),
    ],
)
def test_the_state_decides_how_a_transaction_ended(state: State, kind: str) -> None:
    assert kinds("Finish", state, newFork=False, blocks=[], error=None) == [kind]


def test_a_fork_reopens_only_what_had_ended() -> None:
    assert kinds("Fork", State.SUBMITTED, newFork=True, was="TRACKING") == ["tx.new_fork"]
    assert kinds("Fork", State.SUBMITTED, newFork=True, was="CONFIRMED") == ["tx.new_fork", "tx.reopened"]
    assert kinds("Fork", State.TRACKING, newFork=True) == ["tx.new_fork"]


def test_a_fork_has_the_full_new_list_and_what_it_replaced() -> None:
    listed = [[BLOCK.number, BLOCK.hash]]
    gone = BlockRef(7, BlockHash("0x" + "70" * 32))
    (event,) = events_of(
        entry("Fork", State.TRACKING, newFork=True, blocks=listed, replaced=[[gone.number, gone.hash]])
    )
    assert (event.new_fork, event.confirmations, event.replaced) == (True, (BLOCK,), (gone,))


def test_a_send_is_an_event_by_its_result() -> None:
    assert kinds("SendResult", State.SUBMITTED, attempt=1, result="accepted") == ["tx.submitted"]
    assert kinds("SendResult", State.ALLOCATED, attempt=1, result="insufficient_funds") == [
        "tx.waiting",
        "signer.unfunded",
    ]
    assert kinds("SendResult", State.ALLOCATED, attempt=1, result="underpriced") == []


def test_an_event_never_has_the_nonce() -> None:
    (event,) = events_of(entry("AssignNonce", State.ALLOCATED, nonce=424_242, hash="0x1", attempt=1))
    assert "424242" not in repr(event)


def test_an_entry_of_a_newer_version_is_no_event() -> None:
    assert kinds("Unheard") == []


def test_ids_and_sequences_sort_like_places() -> None:
    places = [
        BEGINNING,
        Place(1, 2, 3, 0),
        Place(1, 2, 3, 1),
        Place(1, 2, 16, 0),
        Place(1, 10, 1, 0),
        Place(1, 2**63, 1, 0),
        Place(2, 1, 1, 0),
        Place(1_900_000_000_000, 2**64 - 1, 2**63 - 1),
    ]
    assert sorted(place.id for place in places) == [place.id for place in places]
    assert sorted(places, key=lambda place: int(place.sequence)) == places
    assert [parse_place(place.id) for place in places] == places


@pytest.mark.parametrize("text", ["", "evt_", "evt_" + "g" * 45, "x" + BEGINNING.id, BEGINNING.id + "0"])
def test_other_text_is_no_place(text: str) -> None:
    assert parse_place(text) is None


def test_an_id_beyond_the_database_is_no_place() -> None:
    assert parse_place(Place(1, 1, 2**63).id) is None


def test_events_of_one_entry_differ() -> None:
    found: list[Event] = events_of(entry("Unfunded", State.QUEUED, reason="empty"))
    assert [event.reason for event in found] == ["empty", "empty"]
    assert found[0].id < found[1].id <= Place(1, 2, 3).id

"""The page about events has a valid example of each type."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from fencepost.events.log import parse_place
from fencepost.events.types import MEANINGS, EventType
from fencepost.schemas.events import EventOut

PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
_EXAMPLE = re.compile(r"^### (\S+)\n\n([^\n]+)\n\n```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_each_type_has_its_meaning_and_a_valid_example() -> None:
    examples = {kind: (meaning, text) for kind, meaning, text in _EXAMPLE.findall(PAGE)}
    assert set(examples) == {kind.value for kind in EventType}
    for kind, (meaning, text) in examples.items():
        assert meaning == MEANINGS[EventType(kind)]
        event = msgspec.json.decode(text, type=EventOut)
        place = parse_place(event.id)
        assert place is not None
        assert (event.type, event.sequence) == (kind, place.sequence)
        assert msgspec.json.decode(msgspec.json.encode(event)) == msgspec.json.decode(text)

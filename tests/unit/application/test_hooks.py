"""The stuck hook as an entry point: the named one is loaded, or the node reports why it cannot."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import fencepost
from fencepost.application.hooks import load_stuck_hook
from fencepost.bootstrap.lane_settings import mark_stuck, stuck_hook_of
from fencepost.errors import SettingError
from fencepost.settings import load

HOOKS = """
async def patient(tx):
    return "wait"

def not_async(tx):
    return "wait"

class Decider:
    async def __call__(self, tx):
        return "filler"

    async def method(self, tx):
        return "resubmit"

decider = Decider()
broken = 7
"""


@pytest.fixture(autouse=True)
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "edge_hooks.py").write_text(HOOKS)
    (tmp_path / "edge_hooks_broken.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "edge_hooks", raising=False)


@pytest.mark.parametrize(
    ("entry_point", "decides"),
    [
        ("edge_hooks:patient", "wait"),
        ("edge_hooks:decider", "filler"),
        ("edge_hooks:decider.method", "resubmit"),
    ],
)
async def test_an_entry_point_is_loaded(entry_point: str, decides: str) -> None:
    settings = load(environ={}, flags={"resubmit.stuck_hook": entry_point}).settings
    hook = stuck_hook_of(settings)
    assert await hook(None) == decides  # type: ignore[arg-type]  # these hooks don't look at it


@pytest.mark.parametrize(
    "entry_point",
    [
        "edge_hooks:missing",
        "edge_hooks:not_async",
        "edge_hooks:broken",
        "edge_hooks_broken:hook",
        "no_such_module:hook",
    ],
)
def test_an_invalid_hook_is_reported_in_one_line(entry_point: str) -> None:
    with pytest.raises(SettingError, match=r"resubmit\.stuck_hook") as caught:
        load_stuck_hook(entry_point)
    assert entry_point in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_hook_the_operator_decides() -> None:
    assert stuck_hook_of(load(environ={}).settings) is mark_stuck
    with pytest.raises(SettingError, match="module:function"):
        load(environ={}, flags={"resubmit.stuck_hook": "no colon"})


def test_types_for_hooks_and_handlers_can_be_imported_from_the_top_level() -> None:
    for name in fencepost.__all__:
        assert getattr(fencepost, name) is not None
    assert {"NonceContext", "Handler", "StuckHook", "StuckDecision", "UnsignedTx"} <= set(fencepost.__all__)

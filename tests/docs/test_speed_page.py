"""Check that docs/speed.md is generated from the measured figures and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.bench.page import render_page

DOCS = Path(__file__).parents[2] / "docs"
WRITTEN = render_page(DOCS / "figures")


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_the_speed_page_is_generated_from_its_figures(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == WRITTEN[name], (
        "write it anew: ./dev bench --page docs"
    )


def test_the_page_shows_every_chart() -> None:
    text = WRITTEN["speed.md"]
    assert all(f"]({name})" in text for name in WRITTEN if name.endswith(".svg"))

"""The page about speed says what was measured: it is written from its figures, and from nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.lab.bench.page import page

DOCS = Path(__file__).parents[2] / "docs"
WRITTEN = page(DOCS / "figures")


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_the_page_is_what_the_figures_make_of_it(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == WRITTEN[name], (
        "write it anew: ./dev bench --page docs"
    )


def test_every_picture_is_shown() -> None:
    text = WRITTEN["speed.md"]
    assert all(f"]({name})" in text for name in WRITTEN if name.endswith(".svg"))

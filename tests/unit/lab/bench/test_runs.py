"""A figure that can't be measured is reported, and the others are measured all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fencepost.errors import Unready
from lab.bench import runs
from lab.bench.report import Figure


class _Stage:
    async def version(self) -> str:
        return "18"

    async def anvil_version(self) -> str:
        return "1"


@asynccontextmanager
async def _no_stage(*, quick: bool) -> AsyncIterator[_Stage]:  # noqa: ARG001 - as it is called
    yield _Stage()


async def _fails(_stage: object) -> list[Figure]:
    raise Unready("not there")


async def _fails_side_by_side(_stage: object) -> list[Figure]:
    async with asyncio.TaskGroup() as group:
        group.create_task(_fails(_stage))
    return []


async def _goes_wrong(_stage: object) -> list[Figure]:
    async with asyncio.TaskGroup() as group:
        group.create_task(_fails(_stage))
        raise ValueError("an unexpected error")


async def _is_measured(_stage: object) -> list[Figure]:
    return [Figure("good", 1, "/s", None, True)]


@pytest.fixture(autouse=True)
def figures(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "fails": _fails,
        "side": _fails_side_by_side,
        "wrong": _goes_wrong,
        "good": _is_measured,
    }
    monkeypatch.setattr(runs, "FIGURES", known)
    monkeypatch.setattr(runs, "open_testbed", _no_stage)


async def measured(*names: str) -> tuple[list[str], dict[str, str]]:
    good: list[Figure] = []
    bad: dict[str, str] = {}
    await runs.run(
        names, quick=True, on_start=lambda _: None, on_figures=good.extend, on_failure=bad.__setitem__
    )
    return [figure.name for figure in good], bad


async def test_a_failed_figure_is_reported_and_the_rest_is_measured() -> None:
    assert await measured("fails", "side", "good") == (["good"], {"fails": "not there", "side": "not there"})


async def test_an_unexpected_error_is_raised() -> None:
    with pytest.raises(ExceptionGroup):
        await measured("wrong", "good")

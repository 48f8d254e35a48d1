"""Measured figures, each with its baseline and target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. `ratio` is value to baseline; `target` applies to the ratio, or to the value without one.

    A figure without a target only explains another one.
    """

    name: str
    value: float
    unit: str
    target: float | None
    at_least: bool  # False: at most
    compared_with: str = ""
    baseline: float | None = None

    @property
    def ratio(self) -> float | None:
        return None if not self.baseline else self.value / self.baseline

    @property
    def judged(self) -> float:
        return self.value if self.ratio is None else self.ratio

    @property
    def is_reached(self) -> bool | None:
        if self.target is None:
            return None
        return self.judged >= self.target if self.at_least else self.judged <= self.target

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "ratio": self.ratio, "reached": self.is_reached}


_VERDICTS = {True: "reached", False: "missed", None: ""}


def rows(figures: Sequence[Figure]) -> list[tuple[str, str, str, str, str, str]]:
    """Return table rows: figure, value, compared with, ratio, target, verdict."""
    return [
        (
            figure.name,
            f"{number(figure.value)} {figure.unit}",
            f"{number(figure.baseline)} ({figure.compared_with})"
            if figure.baseline
            else figure.compared_with or "-",
            f"{figure.ratio:.2f}" if figure.ratio is not None else "-",
            target_text(figure),
            _VERDICTS[figure.is_reached],
        )
        for figure in figures
    ]


def number(value: float) -> str:
    """Format a number with as many decimals as it needs."""
    if value >= 100:  # noqa: PLR2004 - decimals are noise from here on
        return f"{value:,.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".")


def target_text(figure: Figure) -> str:
    if figure.target is None:
        return "-"
    return f"{'≥' if figure.at_least else '≤'} {number(figure.target)}"

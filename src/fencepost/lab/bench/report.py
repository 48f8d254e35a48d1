"""What was measured, beside what it is compared with: a table, JSON, or a chart as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    """`ratio` is value to baseline where there is one; `target` is what we want of ratio, or of value without one."""

    name: str
    value: float
    unit: str
    target: float
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
    def is_reached(self) -> bool:
        return self.judged >= self.target if self.at_least else self.judged <= self.target

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "ratio": self.ratio, "reached": self.is_reached}


def rows(figures: Sequence[Figure]) -> list[tuple[str, str, str, str, str, str]]:
    """For a table: figure, value, compared with, ratio, target, verdict."""
    return [
        (
            figure.name,
            f"{number(figure.value)} {figure.unit}",
            f"{number(figure.baseline)} ({figure.compared_with})"
            if figure.baseline
            else figure.compared_with or "-",
            f"{figure.ratio:.2f}" if figure.ratio is not None else "-",
            _target(figure),
            "reached" if figure.is_reached else "missed",
        )
        for figure in figures
    ]


def number(value: float) -> str:
    if value >= 100:  # noqa: PLR2004 - from here on decimals say nothing
        return f"{value:,.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _target(figure: Figure) -> str:
    return f"{'≥' if figure.at_least else '≤'} {number(figure.target)}"


def _against_target(figure: Figure) -> str:
    return f"{number(figure.judged)} ({_target(figure)})"


_ROW_PX, _LABEL_PX, _BAR_PX = 30, 330, 420


def write_chart(path: Path, figures: Sequence[Figure], facts: Mapping[str, str]) -> None:
    """A bar a figure: how far it is from its target, which is the line in the middle."""
    height = _ROW_PX * (len(figures) + 2) + 40
    width = _LABEL_PX + _BAR_PX + 160
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        '<text x="10" y="20" font-weight="bold">Fencepost: figures against their targets (line = target)</text>',
    ]
    middle = _LABEL_PX + _BAR_PX / 2
    for index, figure in enumerate(figures, start=1):
        y = index * _ROW_PX + 10
        goodness = (
            figure.judged / figure.target if figure.at_least else figure.target / max(figure.judged, 1e-9)
        )
        length = min(max(goodness, 0.0), 2.0) * _BAR_PX / 2
        colour = "#2e7d32" if figure.is_reached else "#c62828"
        parts += [
            f'<text x="10" y="{y + 15}">{escape(figure.name)}</text>',
            f'<rect x="{_LABEL_PX}" y="{y}" width="{length:.0f}" height="20" fill="{colour}"/>',
            f'<text x="{_LABEL_PX + _BAR_PX + 8}" y="{y + 15}">{_against_target(figure)}</text>',
        ]
    parts.append(
        f'<line x1="{middle}" y1="{_ROW_PX}" x2="{middle}" y2="{height - 50}" stroke="black" stroke-dasharray="4"/>'
    )
    told = escape(" · ".join(f"{name} {value}" for name, value in facts.items()))
    parts += [f'<text x="10" y="{height - 15}" font-size="11" fill="#555">{told}</text>', "</svg>"]
    path.write_text("\n".join(parts), encoding="utf-8")

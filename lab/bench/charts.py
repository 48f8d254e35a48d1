"""Charts as SVG text, which tests can compare and browsers display."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from lab.bench.report import Figure, number, target_text

_WIDTH, _LABEL, _BAR, _ROW = 920, 340, 400, 26
_GOOD, _BAD, _PLAIN = "#2e7d32", "#c62828", "#3566a8"
_STAGE_COLOURS = ("#3566a8", "#5b8fd0", "#9fb8d9", "#b7791f", "#d9a441", "#7a5195", "#c0392b", "#bdbdbd", "#6aa84f", "#2e7d32")  # fmt: skip
_FLAME_ROW, _FLAME_WIDTH = 18, 1200
_CHAR_PX = 6.2


def targets(figures: Sequence[Figure], facts: Mapping[str, str]) -> str:
    """Draw a bar for each figure with a target: how close it is. The line in the middle is the target."""
    body = []
    wanted = [(figure, figure.target) for figure in figures if figure.target is not None]
    for index, (figure, target) in enumerate(wanted, start=1):
        y = index * _ROW + 14
        met = figure.judged / target if figure.at_least else target / max(figure.judged, 1e-9)
        length = min(max(met, 0.0), 2.0) * _BAR / 2
        said = f"{number(figure.judged)} ({target_text(figure)})"
        body.append(_bar(y, figure.name, length, said, _GOOD if figure.is_reached else _BAD))
    height = _ROW * (len(wanted) + 1) + 44
    middle = _LABEL + _BAR / 2
    body.append(
        f'<line x1="{middle:g}" y1="{_ROW + 8}" x2="{middle:g}" y2="{height - 34}" stroke="black" stroke-dasharray="4"/>'
    )
    machine = " · ".join(f"{name} {value}" for name, value in facts.items())
    body.append(f'<text x="10" y="{height - 12}" font-size="11" fill="#555">{escape(machine)}</text>')
    return _svg(_WIDTH, height, "Figures against their targets (line = target; longer is better)", body)


def bars(title: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """Draw a bar for each row of label, value and caption; the longest bar is the largest value."""
    largest = max((value for _, value, _ in rows), default=0.0) or 1.0
    body = [
        _bar(index * _ROW + 14, label, value / largest * _BAR, said, _PLAIN)
        for index, (label, value, said) in enumerate(rows, start=1)
    ]
    return _svg(_WIDTH, _ROW * (len(rows) + 1) + 24, title, body)


def stage_timeline(title: str, stages: Sequence[tuple[str, float]]) -> str:
    """Draw one transaction from left to right, each stage as wide as it is long, with a legend below."""
    whole = sum(length for _, length in stages) or 1.0
    x, body = 10.0, []
    for index, (name, length) in enumerate(stages):
        width = length / whole * (_WIDTH - 20)
        colour = _STAGE_COLOURS[index % len(_STAGE_COLOURS)]
        body.append(f'<rect x="{x:.1f}" y="36" width="{width:.1f}" height="34" fill="{colour}"/>')
        x += width
        row, column = divmod(index, 4)
        left, top = 10 + column * 225, 92 + row * 22
        said = f"{name} {number(length)} ms"
        body.append(f'<rect x="{left}" y="{top - 11}" width="12" height="12" fill="{colour}"/>')
        body.append(f'<text x="{left + 18}" y="{top}">{escape(said)}</text>')
    return _svg(_WIDTH, 100 + 22 * ((len(stages) + 3) // 4), title, body)


@dataclass(slots=True)
class _Flame:
    share: float = 0.0
    above: dict[str, _Flame] = field(default_factory=dict)


def flames(title: str, stacks: Sequence[tuple[Sequence[str], float]]) -> str:
    """Draw a flame graph: callers below the functions they call, each as wide as its share of the CPU."""
    root = _Flame()
    for frames, share in stacks:
        at = root
        at.share += share
        for frame in frames:
            at = at.above.setdefault(frame, _Flame())
            at.share += share
    depth = max((len(frames) for frames, _ in stacks), default=0)
    height = 40 + depth * _FLAME_ROW
    body: list[str] = []
    _draw(root, 0.0, height - 6 - _FLAME_ROW, body)
    return _svg(_FLAME_WIDTH, height, title, body, size=10)


def _draw(flame: _Flame, x: float, y: float, body: list[str]) -> None:
    for name, child in sorted(flame.above.items()):
        width = child.share * _FLAME_WIDTH
        label = name if len(name) * _CHAR_PX < width else name.rpartition(":")[2]
        said = escape(f"{name}: {child.share:.1%}")
        body.append(
            f'<g><title>{said}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_FLAME_ROW - 1}"'
            f' fill="{_warm(name)}"/>'
            + (
                f'<text x="{x + 3:.1f}" y="{y + 12}">{escape(label)}</text>'
                if len(label) * _CHAR_PX < width
                else ""
            )
            + "</g>"
        )
        _draw(child, x, y - _FLAME_ROW, body)
        x += width


def _warm(name: str) -> str:
    """Return a warm colour for Fencepost's code and a grey for libraries; the same name has always the same colour."""
    shade = zlib.crc32(name.encode()) % 50
    if name.startswith(("fencepost.", "lab.")):
        return f"rgb({205 + shade}, {120 + shade}, 60)"
    return f"rgb({180 + shade}, {180 + shade}, {180 + shade})"


def _bar(y: int, label: str, length: float, said: str, colour: str) -> str:
    return (
        f'<text x="10" y="{y + 13}">{escape(label)}</text>'
        f'<rect x="{_LABEL}" y="{y}" width="{length:.0f}" height="18" fill="{colour}"/>'
        f'<text x="{_LABEL + _BAR + 8}" y="{y + 13}">{escape(said)}</text>'
    )


def _svg(width: int, height: int, title: str, body: Sequence[str], *, size: int = 13) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="{size}">'
    return "\n".join(
        [
            head,
            f'<rect width="{width}" height="{height}" fill="white"/>',
            f'<text x="10" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
            *body,
            "</svg>\n",
        ]
    )

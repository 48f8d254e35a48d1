"""Report a chaos run as JSON, and as one HTML file with a timeline.

The timeline shows the lease holders of each signer, the faults, the rate of sends, and the confirmations. The file needs no
other file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape
from typing import Any

from lab.chaos.failpoints import POINTS
from lab.chaos.lost_commits_phase import LostCommitsResult
from lab.chaos.restore_phase import RestoreResult
from lab.chaos.run import Outcome
from lab.checker.invariants import INVARIANTS

_WIDTH, _LEFT, _ROW = 1200, 190, 20
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948")
_LISTED = 200


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the report as JSON values."""
    history = outcome.history
    until_s = outcome.began_s + outcome.plan.seconds
    ended_early = {
        line.tx_id for line in history.lines if line.event == "Finish" and line.committed_s < until_s
    }
    takeovers = len(history.terms) - len({term.signer for term in history.terms})
    return {
        "ok": outcome.is_good,
        "seed": outcome.plan.seed,
        "machine": dict(outcome.machine),
        "faultSeconds": outcome.plan.seconds,
        "seconds": outcome.seconds,
        "nodes": outcome.plan.nodes,
        "nodeStarts": outcome.starts,
        "nodeStartsFailed": outcome.failed_starts.total(),
        "nodeStartsFailedBecause": dict(outcome.failed_starts.most_common()),
        "takeovers": takeovers,
        "faults": len(outcome.faults),
        "faultsByKind": dict(outcome.by_kind.most_common()),
        "rpcCallsSpoiled": dict(outcome.injected),
        "failpointsStruck": {point: outcome.notes[point] for point in POINTS if point in outcome.notes},
        "transactions": len(history.txs),
        "endedUnderFaults": len(ended_early),
        "states": dict(Counter(tx.state for tx in history.txs)),
        "acknowledged": len(history.acknowledged),
        "attempts": len(history.attempts),
        "sends": len(history.sent),
        "blocks": len(history.blocks),
        "quietWithinS": None if history.quiet_within_s is None else round(history.quiet_within_s, 1),
        "restoredCopy": None if outcome.restored is None else _restored(outcome.restored),
        "lostCommits": None if outcome.lost is None else _lost(outcome.lost),
        "violations": [
            {"invariant": found.invariant, "what": found.what, "where": found.where}
            for found in outcome.violations[:_LISTED]
        ],
        "violationsInAll": len(outcome.violations),
    }


def _restored(act: RestoreResult) -> dict[str, Any]:
    restored, found = act.restored, act.found
    return {
        "lostS": round(restored.stopped_s - restored.copied_s, 1),
        "requestsWithoutNonce": len(restored.unsent),
        "requestsAttached": found.attached,
        "noncesFilled": found.filled,
        "droppedFromPool": act.dropped,
        "quietWithinS": None if act.quiet_within_s is None else round(act.quiet_within_s, 1),
        "violations": len(found.violations),
    }


def describe_restored(facts: dict[str, Any] | None) -> str:
    """Describe the restore in one sentence."""
    if facts is None:
        return "No restore from an older copy: it was not quiet before."
    return (
        f"The database was put back from a copy that was {facts['lostS']} s old, with {facts['requestsWithoutNonce']}"
        f" requests without a nonce: the chain had carried out {facts['requestsAttached']} of them, which were attached,"
        f" and fillers took {facts['noncesFilled']} nonces; quiet after {facts['quietWithinS']} s,"
        f" {facts['violations']} violations."
    )


def _lost(lost: LostCommitsResult) -> dict[str, Any]:
    act, found = lost.act, lost.found
    return {
        "tries": act.tries,
        "commits": act.commits_lost,
        "requests": found.requests_lost,
        "sentAndForgotten": found.forgotten,
        "signersProtected": found.protected,
        "quietWithinS": None if act.quiet_within_s is None else round(act.quiet_within_s, 1),
        "violations": len(found.violations),
    }


def describe_lost_commits(facts: dict[str, Any] | None) -> str:
    """Describe the fail-over with lost commits in one sentence."""
    if facts is None:
        return "No fail-over that loses commits: it was not quiet before."
    return (
        f"At the end a fail-over lost {facts['commits']} commits (try {facts['tries']}): {facts['requests']} acknowledged"
        f" requests are gone, {facts['sentAndForgotten']} transactions were sent and forgotten,"
        f" {facts['signersProtected']} signers are in PROTECT for it;"
        f" quiet after {facts['quietWithinS']} s, {facts['violations']} violations."
    )


def as_html(outcome: Outcome) -> str:
    """Return the report as an HTML page."""
    facts = as_json(outcome)
    rows = "".join(
        f"<tr><td>{number}</td><td>{escape(text)}</td><td>{_verdict(outcome, number)}</td></tr>"
        for number, text in INVARIANTS.items()
    )
    kinds = "".join(
        f"<tr><td>{escape(kind)}</td><td>{count}</td></tr>" for kind, count in outcome.by_kind.most_common()
    )
    listed = "".join(f"<li>{escape(str(found))}</li>" for found in outcome.violations[:_LISTED])
    title = "no violation" if outcome.is_good else f"{len(outcome.violations)} violations"
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>chaos, seed {facts["seed"]}</title>
<style>body{{font:14px system-ui,sans-serif;margin:2em;max-width:{_WIDTH + 40}px;color:#222}}
td,th{{padding:2px 12px 2px 0;text-align:left}}
table{{border-collapse:collapse}}svg text{{font:11px system-ui,sans-serif}}.bad{{color:#b00020}}.good{{color:#1b7f3b}}
.columns{{display:flex;gap:4em;flex-wrap:wrap}}</style></head><body>
<h1>Chaos: <span class="{"good" if outcome.is_good else "bad"}">{title}</span></h1>
<p>Seed {facts["seed"]}, {facts["seconds"]} s, {facts["nodes"]} nodes started {facts["nodeStarts"]} times,
{facts["faults"]} faults of {len(outcome.by_kind)} kinds, {facts["transactions"]} transactions, {facts["sends"]} sends,
{facts["takeovers"]} take-overs, quiet after {facts["quietWithinS"]} s.</p>
<p>{escape(describe_restored(facts["restoredCopy"]))}</p>
<p>{escape(describe_lost_commits(facts["lostCommits"]))}</p>
{_timeline(outcome)}<ul class="bad">{listed}</ul>
<div class="columns"><table><tr><th></th><th>invariant</th><th></th></tr>{rows}</table>
<table><tr><th>fault</th><th>count</th></tr>{kinds}</table></div></body></html>
"""


def _verdict(outcome: Outcome, number: int) -> str:
    count = sum(1 for found in outcome.violations if found.invariant == number)
    return f'<span class="bad">{count} times broken</span>' if count else '<span class="good">holds</span>'


# ---- the timeline


class _Scale:
    def __init__(self, outcome: Outcome) -> None:
        self.began_s = outcome.began_s
        self.lasts_s = max(outcome.seconds, 1.0)

    def x(self, at_s: float) -> float:
        share = min(max((at_s - self.began_s) / self.lasts_s, 0.0), 1.0)
        return round(_LEFT + share * (_WIDTH - _LEFT), 1)


def _timeline(outcome: Outcome) -> str:
    scale = _Scale(outcome)
    shapes: list[str] = []
    nodes = sorted({term.node for term in outcome.history.terms})
    colour = {node: _COLOURS[index % len(_COLOURS)] for index, node in enumerate(nodes)}
    y = 20
    for index, node in enumerate(nodes):
        shapes.append(f'<rect x="{_LEFT + index * 110}" y="2" width="10" height="10" fill="{colour[node]}"/>')
        shapes.append(f'<text x="{_LEFT + 14 + index * 110}" y="11">{escape(node)}</text>')
    for signer in sorted({term.signer for term in outcome.history.terms}):
        shapes += _lease_bars(outcome, scale, signer, y, colour)
        y += _ROW
    y += 6
    for kind in sorted(outcome.by_kind):
        shapes += _faults(outcome, scale, kind, y)
        y += _ROW
    y += 6
    shapes += _density("sends", [sent.at_s for sent in outcome.history.sent], scale, y)
    y += 2 * _ROW
    committed = [line.committed_s for line in outcome.history.lines if line.event == "Finish"]
    shapes += _density("confirmed", committed, scale, y)
    y += 2 * _ROW
    shapes += _seconds(scale, y)
    return f'<svg width="{_WIDTH}" height="{y + 20}" role="img" aria-label="timeline">{"".join(shapes)}</svg>'


def _label(text: str, y: int) -> str:
    return f'<text x="0" y="{y + 14}">{escape(text)}</text>'


def _lease_bars(
    outcome: Outcome, scale: _Scale, signer: str, y: int, colour: dict[str, str]
) -> Iterator[str]:
    """Draw the terms of a signer, each up to the next one."""
    yield _label(f"{signer[:10]}…{signer[-4:]}", y)
    terms = sorted((term for term in outcome.history.terms if term.signer == signer), key=lambda t: t.token)
    ends_s = [term.began_s for term in terms[1:]] + [scale.began_s + scale.lasts_s]
    for term, end_s in zip(terms, ends_s, strict=True):
        x, width = scale.x(term.began_s), max(1.0, scale.x(end_s) - scale.x(term.began_s))
        yield (
            f'<rect x="{x}" y="{y + 2}" width="{width:.1f}" height="{_ROW - 4}" fill="{colour[term.node]}"'
            f' stroke="white"><title>{escape(term.node)}, token {term.token}</title></rect>'
        )


def _faults(outcome: Outcome, scale: _Scale, kind: str, y: int) -> Iterator[str]:
    yield _label(kind, y)
    for fault in outcome.faults:
        if fault.kind == kind:
            x = scale.x(fault.at_s)
            width = max(2.0, scale.x(fault.at_s + fault.lasted_s) - x)
            label = escape(f"{fault.target} {fault.detail}")
            yield (
                f'<rect x="{x}" y="{y + 4}" width="{width:.1f}" height="{_ROW - 8}" fill="#c0392b" opacity="0.7">'
                f"<title>{label}</title></rect>"
            )


def _density(name: str, times_s: list[float], scale: _Scale, y: int) -> Iterator[str]:
    """Draw a bar per second."""
    yield _label(f"{name} a second", y + _ROW // 2)
    counts = Counter(int(at_s - scale.began_s) for at_s in times_s)
    most = max(counts.values(), default=1)
    for second, count in counts.items():
        height = max(1.0, count / most * (2 * _ROW - 6))
        x = scale.x(scale.began_s + second)
        width = max(1.0, scale.x(scale.began_s + second + 1) - x - 0.5)
        top = y + 2 * _ROW - 2 - height
        yield (
            f'<rect x="{x}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" fill="#888">'
            f"<title>{count}</title></rect>"
        )


def _seconds(scale: _Scale, y: int) -> Iterator[str]:
    step_s = max(1, round(scale.lasts_s / 12))
    for second in range(0, int(scale.lasts_s) + 1, step_s):
        x = scale.x(scale.began_s + second)
        yield f'<line x1="{x}" x2="{x}" y1="18" y2="{y}" stroke="#ddd"/><text x="{x}" y="{y + 14}">{second} s</text>'

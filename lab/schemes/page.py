"""Render the page docs/nonce-schemes.md from one run of `./dev schemes`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lab.schemes.comparison import Report
from lab.schemes.faults import FAULTS, Outcome

_HEAD = """\
# Which nonce scheme?

The nonce service allocates nonces to callers that send by themselves (`nonce_service.enabled`). Five schemes implement one
port; `nonce_service.scheme` chooses one, and a signer may have its own (`[signers."0x…"] scheme`).

| if you … | take |
|---|---|
| don't know, or want the strongest guarantee at a high rate | `leased`: one lease holder per signer, every write fenced, no Redis |
| can't route a signer to one process, and a few hundred nonces per second are enough | `postgres`: any process, any signer |
| must answer in microseconds, route each signer to one process, and can wait after a crash | `segments` |
| have Redis and want any process to serve any signer, without a row that all callers wait for | `redis_issue` |
| have Redis, need its rate from any process, and can accept duplicates when Redis loses writes | `redis_full` |

What to know before you choose:

- **leased** — a process that does not hold the signer's lease rejects callers and names the holder. After a crash no caller
  gets nonces of its signers until the lease has expired (`lease.duration`); a graceful stop hands over immediately.
- **postgres** — with many callers of one signer, they queue for its row. `nonce_service.redis_lock` moves that queue to
  Redis; it keeps connections free, but does not raise the rate.
- **segments** — a crash loses up to `nonce_service.unflushed_max` unstored holds and the rest of the block. Those nonces are
  missing, and the chain waits for them, until `nonce_service.dead_after` has passed.
- **redis_issue** — no fault of Redis makes a duplicate, nor does a single process that can't reach Redis: PostgreSQL's unique
  key decides. A process that dies between the two leaves a nonce gap until `nonce_service.heal_after` has passed.
- **redis_full** — a nonce that Redis acknowledged and PostgreSQL does not have yet is allocated again if Redis loses it. The
  window is `nonce_service.tend_interval` long. Don't use it where a duplicate costs money.
- **redis_full, when a process can't reach Redis** — it must not allocate from PostgreSQL what others allocate from Redis. So it
  marks the signer's row, which turns the signer away from Redis for all processes: within half a second the others read the
  mark and store what Redis has, and from one second on all allocate by row lock, until two to four seconds after the last
  call without Redis. The price: without PostgreSQL as well, nothing is allocated after half a second, because no process
  could read a mark. The same window remains: a nonce that a process allocated from Redis before it died or lost PostgreSQL
  too, and that no process stored. Keep `nonce_service.tend_interval` short, and equal in all processes.
"""

_EQUAL_LOAD = """\
The bare counter is what Redis and its client achieve for a script that only counts, called once per nonce by the same 64
callers: each on its own connection, and in pipelines, where waiting calls travel together as in `redis_full`.
"""

_MEANING = """\
A fault's cell: duplicates / nonce gaps → gaps left after reclaiming / longest time without a nonce, in seconds. All five
schemes were running when the fault happened, each for its own signer. Where any process may serve any signer, a second
process gets callers after the fault, and when Redis is lost the first process is lost with it. A duplicate is a nonce that
two callers got; a gap is a nonce below the highest allocated one that no caller got. Leases lasted 2 s, holds 0.5 s, blocks
100 nonces.

- *Redis killed*: kill -9, nothing kept, back after 0.4 s or more. *Redis failed over*: to a replica that missed the last 0.25 s.
- *one without Redis*: a second process that can't reach Redis serves the same signer as the first one, which can.
- *process killed*: kill -9; another one continues. *two owners*: the first was paused for longer than its lease, and continues
  next to the second.
- *database restarted*: as after a crash. *answers lost*: executed, but the connection was cut instead of an answer.

This page is made by `./dev schemes --markdown`. Rates vary by 30 % from run to run; the ratios vary less.
"""


def render_page(report: Report) -> str:
    """Return the page."""
    machine = report.machine
    where = (
        f"{machine['cores']} cores, {machine['system']}, Python {machine['python']}, PostgreSQL"
        f" {machine['postgresql']} with fsync, Redis {machine['redis']} without a log, everything on one machine"
    )
    rates = [
        (
            f"`{name}`",
            f"{m.hot.per_s:,.0f}",
            f"{m.hot.p50_ms:g} / {m.hot.p99_ms:g}",
            f"{m.spread.per_s:,.0f}",
            f"{m.spread.p50_ms:g} / {m.spread.p99_ms:g}",
        )
        for name, m in report.schemes.items()
    ]
    for name, rate in (
        ("a bare Lua counter", report.bare_lua),
        ("the same, in pipelines", report.bare_lua_pipelined),
    ):
        rates.append((name, f"{rate.per_s:,.0f}", f"{rate.p50_ms:g} / {rate.p99_ms:g}", "", ""))
    outcomes = [
        (f"`{name}`", *[_cell(m.faults[fault]) for fault in FAULTS]) for name, m in report.schemes.items()
    ]
    parts = [
        _HEAD,
        "## What was measured\n",
        f"64 callers, one nonce per call; {where}.\n",
        _table(("scheme", "one hot signer, /s", "p50 / p99 ms", "100 signers, /s", "p50 / p99 ms"), rates),
        _EQUAL_LOAD,
        "Ratios: " + ", ".join(f"{name} {value:g}" for name, value in report.ratios.items()) + ".\n",
        _table(("scheme", *FAULTS), outcomes),
        _MEANING,
    ]
    return "\n".join(parts)


def _cell(outcome: Outcome) -> str:
    gaps = f"{outcome.gaps} → {outcome.gaps_left}" if outcome.gaps else "0"
    return f"{outcome.duplicates} / {gaps} / {outcome.stall_s:.2f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"

"""The page docs/nonce-schemes.md, made from one run of `fencepost lab schemes`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fencepost.lab.scheme_faults import FAULTS, Outcome
from fencepost.lab.schemes import Report

_HEAD = """\
# Which nonce scheme?

The nonce service gives nonces to those who send by themselves (`nonce_service.enabled`). Five schemes stand behind one
port; `nonce_service.scheme` chooses, and a signer may have its own (`[signers."0x…"] scheme`).

| if you … | take |
|---|---|
| don't know, or want the strongest promise at a high rate | `leased`: one owner a signer, every write fenced, no Redis |
| can't route a signer to one process, and a few hundred nonces a second are enough | `postgres`: any process, any signer |
| must answer in microseconds, route each signer to one process, and can wait after a crash | `segments` |
| have Redis and want any process to serve any signer, without a row that everybody waits for | `redis_issue` |
| have Redis, need its rate from any process, and can live with duplicates when Redis loses writes | `redis_full` |

What to know before you choose:

- **leased** — callers of a process that does not own the signer are told who does. After a crash nobody gets nonces of
  its signers until the lease has run out (`lease.duration`); a clean end hands over at once.
- **postgres** — with many callers of one signer the row is the queue. `nonce_service.redis_lock` moves that queue to
  Redis; it keeps connections free, not the rate up.
- **segments** — a crash takes up to `nonce_service.unflushed_max` unstored holds and the rest of the block with it. Those
  nonces are missing, and the chain waits for them, until `nonce_service.dead_after` has passed.
- **redis_issue** — no fault of Redis makes a duplicate, nor does a process that alone can't reach it: PostgreSQL's key has
  the last word. A process that dies between the two leaves a hole until `nonce_service.heal_after` has passed.
- **redis_full** — what Redis acknowledged and PostgreSQL does not have yet is given again if Redis loses it. The window
  is `nonce_service.tend_interval` wide. Don't use it where a duplicate costs money.
- **redis_full, when a process can't reach Redis** — it must not give from PostgreSQL what others give from Redis. So it
  turns the signer away from Redis for everybody, in the signer's row: all others hear of it within half a second, write
  down what Redis has, and from one second on all give by row lock, until two to four seconds after the last call
  that had no Redis. The price: without PostgreSQL, too, nothing is given from half a second on, because nobody could
  be heard. What remains is the same window: a nonce that was given from Redis by a process that then died or lost
  PostgreSQL too before anybody wrote it down. Keep `nonce_service.tend_interval` short, and the same in all processes.
"""

_EQUAL_LOAD = """\
The bare counter is what Redis and its client give for a script that only counts, called once a nonce by the same 64
callers: each on a connection of its own, and in pipelines, where what waits travels together as in `redis_full`.
"""

_MEANING = """\
A fault's cell: duplicates / holes, and how many were left after reclaiming / longest time without a nonce, in seconds.
All five schemes were at work when it happened, each for a signer of its own; where any process may serve any signer, a
second one gets callers from the fault on, and when Redis is lost the first one is lost with it. A duplicate is a nonce that two callers
got; a hole is one below the highest that nobody got. Leases lasted 2 s, holds 0.5 s, blocks 100 nonces.

- *Redis killed*: with -9, nothing kept, back after 0.4 s and more. *Redis failed over*: to a replica that missed the last 0.25 s.
- *one without Redis*: a second process that can't reach Redis serves the same signer, beside the first one, which can.
- *process killed*: with -9; another one goes on. *two owners*: the first was paused beyond its lease, and goes on beside
  the second.
- *database restarted*: as after a crash. *answers lost*: done, but the connection was cut in place of the answer.

This page is made by `fencepost lab schemes --markdown`. Rates move by 30 % from run to run; the ratios move less.
"""


def page(report: Report) -> str:
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
        f"64 callers, one nonce a call; {where}.\n",
        _table(("scheme", "one hot signer, /s", "p50 / p99 ms", "100 signers, /s", "p50 / p99 ms"), rates),
        _EQUAL_LOAD,
        "Ratios: " + ", ".join(f"{name} {value:g}" for name, value in report.ratios.items()) + ".\n",
        _table(("scheme", *FAULTS), outcomes),
        _MEANING,
    ]
    return "\n".join(parts)


def _cell(outcome: Outcome) -> str:
    holes = f"{outcome.holes} → {outcome.holes_left}" if outcome.holes else "0"
    return f"{outcome.duplicates} / {holes} / {outcome.stall_s:.2f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"

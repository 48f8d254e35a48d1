"""Fixed plans, each of which makes one kind of flaw visible."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from lab.sim.plan import MIXED, TTL_S, Fault, Plan, PlannedRequest, Setup

_SETUP = Setup(
    nodes=2,
    signers=1,
    strict=False,
    required=1,
    block_s=2.0,
    resubmit_s=4.0,
    stale_s=6.0,
    max_in_flight=4,
    bump=False,
    idle_release_s=30.0,
    same_names=False,
    chain_query_off=False,
    state_timeout_s=TTL_S,
    receipt_upon_entry=False,
)
LONG_S = 2.5 * TTL_S


def _plan(
    *faults: Fault,
    requests: int = 4,
    every_s: float = 1.5,
    by_handlers: Collection[int] = (),
    length_s: float = 45.0,
    variants: int = 1,
    **setup: object,
) -> tuple[Plan, ...]:
    """Make a plan; its variants differ in the delays of calls, and so in their order."""
    asked = tuple(
        PlannedRequest(
            number=number, at_s=1.5 + every_s * (number - 1), signer=0, by_handler=number in by_handlers
        )
        for number in range(1, requests + 1)
    )
    chosen = replace(_SETUP, **setup)  # type: ignore[arg-type]  # fields by name
    return tuple(Plan(seed, chosen, asked, faults, length_s) for seed in range(variants))


def _both(kind: str, call: str, nth: int, *, length_s: float = 0.0, flavour: str = "") -> tuple[Fault, Fault]:
    """Plan the same fault at both nodes, because either may hold the lease."""
    first, second = (
        Fault(kind, slot=slot, call=call, nth=nth, length_s=length_s, flavour=flavour) for slot in (0, 1)
    )
    return first, second


def _zombies(*calls: str, how: str = "pause_before", length_s: float = LONG_S) -> tuple[Fault, ...]:
    """Pause nodes for longer than a lease at the first few of these calls."""
    return tuple(
        Fault(how, slot=slot, call=call, nth=nth, length_s=length_s)
        for slot in (0, 1)
        for call in calls
        for nth in (3, 8, 13)
    )


def _woken_during_the_take_over() -> tuple[Plan, ...]:
    """Let the next lease holder read slowly, while the previous one wakes up with a write in progress."""
    return tuple(
        plan
        for nth in range(2, 9)
        for length_s in (13.0, LONG_S)
        for plan in _plan(
            *_both("slow_call", "load", 1, length_s=6.0),
            *_both("pause_before", "commit", nth, length_s=length_s),
            requests=20,
            length_s=50.0,
        )
    )


def _pool_forgets_what_was_lost(at_s: float, lost_s: float, *, evicted: int) -> tuple[Plan, ...]:
    """Lose handlers with their process, so that later requests get their nonces."""
    return tuple(
        plan
        for size in range(3)
        for kept in range(evicted + 1)
        for plan in _plan(
            Fault("no_blocks", at_s=at_s - lost_s, length_s=lost_s + 3.0),
            *(Fault("evicted", at_s=at_s - 0.15 + 0.1 * n, size=size) for n in range(evicted)),
            Fault("fail_over", at_s=at_s, length_s=lost_s),
            requests=14,
            every_s=0.7,
            length_s=30.0,
            by_handlers=[number for number in range(1, 15) if number % (evicted + 1) != kept],
        )
    )


def _lowest_forgotten(*more: Fault, at_s: float, lost_s: float) -> tuple[Plan, ...]:
    """Send one window of a long queue; then a pool drops its lowest nonce, and the database loses all of it."""
    return tuple(
        plan
        for in_turn, kept in ((2, 0), (3, 1))
        for plan in _plan(
            Fault("no_blocks", at_s=at_s - lost_s, length_s=lost_s + 3.0),
            Fault("evicted", at_s=at_s - 0.05, flavour="lowest"),
            Fault("fail_over", at_s=at_s, length_s=lost_s),
            *more,
            requests=24,
            every_s=0.15,
            length_s=30.0,
            by_handlers=[number for number in range(1, 25) if number % in_turn != kept],
        )
    )


def _often(kind: str, *, every_s: float, times: int, size: int = 0, flavour: str = "") -> tuple[Fault, ...]:
    return tuple(
        Fault(kind, at_s=3.0 + every_s * n, size=size, flavour=flavour, slot=n % 2) for n in range(times)
    )


SCHEDULES: dict[str, tuple[Plan, ...]] = {
    "nothing goes wrong": _plan(),
    "nothing goes wrong, strictly": _plan(strict=True, required=2),
    "owners sleep before a write": _woken_during_the_take_over(),
    "owners sleep after a write": _plan(*_zombies("commit", how="pause_after"), length_s=70.0),
    "owners sleep before a renewal": _plan(*_zombies("renew"), requests=8, length_s=70.0),
    "owners of one name sleep": _plan(*_zombies("commit", "renew"), same_names=True, length_s=70.0),
    "owners die after a write": _plan(
        *(f for nth in (2, 4) for f in _both("crash_after", "commit", nth, length_s=3.0)), length_s=70.0
    ),
    "owners die before a write": _plan(
        *(f for nth in (2, 4) for f in _both("crash_before", "commit", nth, length_s=3.0)), length_s=70.0
    ),
    "owners die at any call": _plan(
        *(f for nth in (20, 30, 41, 52, 63) for f in _both("crash_before", "any", nth, length_s=2.0)),
        requests=10,
        length_s=70.0,
    ),
    "owners die after a send": _plan(
        *(f for nth in (1, 2) for f in _both("crash_after", "send", nth, length_s=3.0)), length_s=70.0
    ),
    "answers of writes get lost": _plan(
        *(f for nth in range(2, 9) for f in _both("db_answer_lost", "commit", nth)), requests=6, variants=3
    ),
    "answers of sends get lost": _plan(
        *(f for nth in (1, 2, 3) for f in _both("rpc_answer_lost", "send", nth)), requests=6, variants=6
    ),
    "sends do not arrive": _plan(
        *(f for nth in (1, 2, 3) for f in _both("rpc_refused", "send", nth)), requests=6
    ),
    "callers ask again": _plan(*(Fault("accept_answer_lost", at_s=1.0, size=number) for number in (1, 2, 3))),
    "pools forget": _plan(*_often("evicted", every_s=0.7, times=40)),
    "no block includes them for a while": _plan(
        Fault("fee_spike", at_s=2.0, length_s=25.0), bump=True, length_s=50.0
    ),
    "no blocks for long": _plan(Fault("no_blocks", at_s=1.0, length_s=20.0), bump=True, length_s=40.0),
    "bumps do not arrive": _plan(
        Fault("no_blocks", at_s=1.0, length_s=20.0),
        *(f for nth in range(3, 60) for f in _both("rpc_refused", "send", nth)),
        bump=True,
        requests=2,
        variants=3,
    ),
    "owners are killed often": _plan(
        *(Fault("killed", at_s=3.3 + 2.9 * n, slot=n % 2, length_s=1.0) for n in range(14)),
        requests=25,
        length_s=60.0,
        variants=6,
    ),
    "short forks": _plan(*_often("reorg", every_s=2.1, times=15, size=1, flavour="dropped"), required=3),
    "deep forks": _plan(
        *_often("reorg", every_s=3.7, times=8, size=4, flavour="dropped"),
        requests=20,
        required=0,
        block_s=1.0,
        variants=3,
    ),
    "renewals fail": _plan(
        *(f for nth in range(1, 9) for f in _both("db_refused", "renew", nth)), requests=20
    ),
    "forks with other blocks": _plan(
        *_often("reorg", every_s=2.7, times=12, size=3, flavour="included"), required=3
    ),
    "a foreign transaction waits in the pool": _plan(
        Fault("foreign_transaction", at_s=3.9, flavour="instead"), variants=3
    ),
    "a foreign transaction in strict mode": _plan(
        *_often("foreign_transaction", every_s=4.1, times=3, flavour="next"), strict=True, required=0
    ),
    "nodes refuse for good": _plan(
        *(f for nth in (1, 2, 3) for f in _both("send_refused", "send", nth, flavour="fatal"))
    ),
    "people protect": _plan(
        Fault("no_blocks", at_s=1.0, length_s=20.0),
        *(Fault("operator_command", at_s=at_s, size=1, flavour="protect") for at_s in (4.0, 9.0)),
    ),
    "clocks jump": _plan(
        *(
            Fault("clock_jump", at_s=5.0 + 3 * n, slot=n % 2, length_s=(60.0 if n % 2 else -40.0))
            for n in range(8)
        ),
        requests=10,
        variants=6,
    ),
    "nonces lag": _plan(Fault("nonce_lags", at_s=1.0, size=9, length_s=30.0), requests=8, variants=3),
    "the database loses commits": tuple(
        plan
        for at_s in (7.0, 9.3, 12.1, 15.7)
        for lost_s in (0.6, 1.7, 4.0)
        for plan in _plan(
            Fault("fail_over", at_s=at_s, length_s=lost_s), requests=14, length_s=30.0, max_in_flight=2
        )
    ),
    "an older copy takes the database's place": tuple(
        plan
        for flavour in ("copy", "snapshot")
        for strict in (False, True)
        for at_s in (9.0, 12.1)
        for plan in _plan(
            Fault("restored", at_s=at_s, length_s=5.0, flavour=flavour),
            requests=8,
            every_s=0.9,
            length_s=40.0,
            strict=strict,
        )
    ),
    "an older snapshot takes the database's place, and pools forget": tuple(
        plan
        for at_s, lost_s in ((6.5, 4.0), (7.3, 5.0))
        for stopped_s in (1.0, 1.5)
        for plan in _plan(
            Fault("no_blocks", at_s=at_s - stopped_s, length_s=stopped_s + 2.0),
            Fault("evicted", at_s=at_s - 0.05, flavour="lowest"),
            Fault("restored", at_s=at_s, length_s=lost_s, flavour="snapshot"),
            requests=24,
            every_s=0.15,
            length_s=35.0,
            by_handlers=[number for number in range(1, 25) if number % 3 != 1],
        )
    ),
    "a pool forgets some of what the database lost": tuple(
        plan
        for at_s in (8.1, 8.9, 9.7)
        for lost_s in (1.7, 2.5)
        for plan in (
            *_pool_forgets_what_was_lost(at_s, lost_s, evicted=1),
            *_lowest_forgotten(at_s=at_s, lost_s=lost_s),
        )
    ),
    "a pool forgets most of what the database lost": tuple(
        plan
        for at_s in (9.7, 10.5)
        for lost_s in (1.7, 2.5, 3.3)
        for plan in _plan(
            Fault("no_blocks", at_s=at_s - lost_s, length_s=lost_s + 3.0),
            *(Fault("evicted", at_s=at_s - 0.05 - 0.05 * n, flavour="lowest") for n in range(2)),
            Fault("fail_over", at_s=at_s, length_s=lost_s),
            requests=24,
            every_s=0.15,
            length_s=30.0,
            by_handlers=[number for number in range(1, 25) if number % 4],
        )
    ),
    "the database loses a signer's beginning, and a pool forgets some of it": tuple(
        plan
        for by_handlers in ([1], [1, 3])
        for stopped_s in (3.0, 6.0)
        for plan in _plan(
            Fault("no_blocks", at_s=0.5, length_s=3.6 + stopped_s),
            Fault("evicted", at_s=3.5, size=2),
            Fault("fail_over", at_s=3.6, length_s=1.7),
            requests=5,
            every_s=0.25,
            length_s=30.0,
            by_handlers=by_handlers,
        )
    ),
    "a pool forgets, people write the cursor, and owners die": tuple(
        plan
        for at_s in (8.1, 9.7)
        for lost_s in (1.7, 2.5)
        for asked_s, dead_s in ((1.5, 3.0), (1.5, 8.0), (2.5, 5.0), (3.5, 6.0))
        for plan in _lowest_forgotten(
            Fault("operator_command", at_s=at_s + asked_s, flavour="pause"),
            Fault("operator_command", at_s=at_s + asked_s + 0.1, flavour="unpause"),
            *(Fault("killed", at_s=at_s + dead_s, slot=slot, length_s=1.0) for slot in (0, 1)),
            at_s=at_s,
            lost_s=lost_s,
        )
    ),
    "the database loses a signer's beginning": tuple(
        plan
        for at_s in (4.4, 6.1)
        for begun_s in (1.52, 1.6, 1.7, 1.9)
        for plan in _plan(
            Fault("fail_over", at_s=at_s, length_s=at_s - begun_s), requests=3, every_s=0.4, length_s=30.0
        )
    ),
    "the database loses a signer's beginning, and nonces lag": tuple(
        plan
        for at_s in (3.6, 4.4, 5.2)
        for lost_s in (2.0, 3.0)
        for plan in _plan(
            Fault("nonce_lags", at_s=at_s - 0.5, length_s=9.0, size=9),
            Fault("fail_over", at_s=at_s, length_s=lost_s),
            requests=1,
            length_s=30.0,
        )
    ),
    "the database loses commits, people write the cursor, and owners die": tuple(
        plan
        for at_s in (9.3, 11.1, 13.7)
        for lost_s in (2.5, 4.0)
        for plan in _plan(
            Fault("no_blocks", at_s=at_s - lost_s, length_s=lost_s + 9.0),
            Fault("fail_over", at_s=at_s, length_s=lost_s),
            *(Fault("evicted", at_s=at_s + 0.1 * n, size=n) for n in range(3)),
            Fault("operator_command", at_s=at_s + 2.5, flavour="pause"),
            Fault("operator_command", at_s=at_s + 2.6, flavour="unpause"),
            Fault("operator_command", at_s=at_s + 2.7, size=1, flavour="cancel"),
            *(Fault("killed", at_s=at_s + 6.0, slot=slot, length_s=1.0) for slot in (0, 1)),
            requests=16,
            every_s=0.8,
            length_s=35.0,
        )
    ),
    "a fork while no node runs": _plan(
        Fault("fork_unwatched", at_s=14.0, length_s=3.0, size=6, flavour="included"),
        length_s=20.0,
        required=0,
    ),
    "a fork below a full window, while no node runs": tuple(
        plan
        for at_s in (8.0, 11.0, 14.0)
        for plan in _plan(
            Fault("fork_unwatched", at_s=at_s, length_s=3.0, size=3, flavour="included"),
            requests=16,
            length_s=30.0,
            required=0,
            max_in_flight=16,
            variants=2,
        )
    ),
    "views that are behind a fork": tuple(
        plan
        for at_s in (9.0, 10.5, 12.0, 13.5, 15.0)
        for owner in (0, 1)
        for plan in _plan(
            Fault("blocks_lag", at_s=at_s, slot=1 - owner, size=14, length_s=20.0),
            Fault("reorg", at_s=at_s + 3.2, size=3, flavour="included"),
            Fault("killed", at_s=at_s + 3.4, slot=owner, length_s=20.0),
            requests=16,
            length_s=40.0,
            required=0,
            block_s=1.0,
        )
    ),
    "one node lies for a moment": tuple(
        plan
        for at_s in (11.0, 13.0, 15.0)
        for plan in _plan(Fault("wrong_nonce", at_s=at_s, length_s=3.0, size=3, flavour="high"), requests=12)
    ),
    "hints get lost": _plan(Fault("hints_lost", at_s=0.2, length_s=30.0)),
    "a hint gets lost now and then": _plan(
        *(Fault("hints_lost", at_s=4.6 + 2.4 * n, length_s=0.3) for n in range(5)),
        requests=20,
        every_s=0.8,
        variants=6,
    ),
    "endpoints serve another chain": tuple(
        plan
        for flavour in ("lone", "one of two")
        for size in (-3, 2, 600)
        for at_s in (1.0, 7.0)  # before or while the sequence begins
        for plan in _plan(
            *(
                Fault("repointed", at_s=at_s, slot=slot, length_s=8.0, size=size, flavour=flavour)
                for slot in (0, 1)
            ),
            requests=8,
            variants=4,
        )
    ),
    "people cancel": _plan(
        Fault("no_blocks", at_s=1.0, length_s=20.0),
        *(
            Fault("operator_command", at_s=9.0 + number, size=number, flavour="cancel")
            for number in (1, 2, 3)
        ),
    ),
    "people protect, and owners die": _plan(
        Fault("no_blocks", at_s=1.0, length_s=20.0),
        Fault("operator_command", at_s=7.0, size=1, flavour="protect"),
        *(Fault("killed", at_s=12.0, slot=slot, length_s=1.0) for slot in (0, 1)),
    ),
    "refusals come with an alarm": _plan(
        *(f for nth in (1, 2, 3) for f in _both("send_refused", "send", nth, flavour=MIXED)),
        requests=8,
        every_s=0.0,
    ),
    "owners of functions die": _plan(
        *(f for nth in (1, 2) for f in _both("crash_before", "sign", nth, length_s=2.0)),
        by_handlers=range(1, 5),
        length_s=60.0,
    ),
    "leases come and go": _plan(*_often("hand_over", every_s=3.0, times=10), requests=10, idle_release_s=3.0),
}

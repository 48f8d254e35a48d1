"""What will happen in a run, decided by its seed before it begins: the setting, the requests, the faults.

A fault is either due at a moment, or at the n-th call that a node makes of a port. Faults are independent of one
another, so that any of them can be left out and the rest still means the same: that is how a failing run is made small.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fencepost.application.sequence import ADOPT_AFTER_S
from fencepost.domain.send import SendCategory

TTL_S: Final = 10.0
SKEW_S: Final = 1.0

# A fault at the n-th call of any node, not of a certain one.
ANYBODY: Final = -1

# Where a node can be caught: weighted towards the calls that matter.
_LEDGER_CALLS: Final = (
    *("commit",) * 10,
    *("acquire",) * 2,
    *("renew",) * 2,
    "release",
    "load",
    "load_queue",
    "load_commands",
    "load_finished",
    "signers_with_work",
)
_CHAIN_CALLS: Final = (
    *("send",) * 8,
    *("receipts",) * 3,
    *("nonce",) * 2,
    "head",
    "block",
    "estimate_gas",
    "quote_fees",
)
_ANY_CALL: Final = (*_LEDGER_CALLS, *_CHAIN_CALLS, "sign", "any", "any")

# Where an owner that sleeps does most harm: with a write or a send in its hands.
_ASLEEP_AT: Final = (*("commit",) * 6, *("send",) * 2, "renew", "sign", *_ANY_CALL[::4])

# A new owner that is slow to read leaves the old one time to write.
_SLOW_AT: Final = (*("load",) * 6, "nonce", "receipts", *_ANY_CALL[::6])

_CALLS_OF: Final[Mapping[str, Sequence[str]]] = {
    "pause_before": _ASLEEP_AT,
    "pause_after": _ASLEEP_AT,
    "crash_before": (*_ANY_CALL, *("sign",) * 8),
    "db_answer_lost": _LEDGER_CALLS,
    "db_refused": _LEDGER_CALLS,
    "rpc_answer_lost": _CHAIN_CALLS,
    "rpc_refused": _CHAIN_CALLS,
    "send_refused": ("send",),
    "refused_but_taken": ("send",),
    "slow_call": _SLOW_AT,
    "key_failure": ("sign",),
}

_REFUSALS: Final = (
    SendCategory.UNDERPRICED,
    SendCategory.POOL_FULL,
    SendCategory.NODE_NOT_READY,
    SendCategory.FEE_CAP_EXCEEDED,
    SendCategory.INSUFFICIENT_FUNDS,
    SendCategory.NONCE_TOO_HIGH,
    SendCategory.ALREADY_KNOWN,
    SendCategory.DELEGATED_LIMIT,
    SendCategory.FATAL,
)

# Not the same for all transactions of a batch.
MIXED: Final = "mixed"

# What a node may say though it took the bytes.
_LIES_ABOUT_SENDS: Final = (*_REFUSALS, SendCategory.UNKNOWN, SendCategory.NONCE_TOO_LOW)

# Kind → how often, relative to the others. The upper ones hit a call, the lower ones a moment.
AT_CALL: Final[Mapping[str, int]] = {
    "crash_before": 5,
    "crash_after": 5,
    "pause_before": 6,
    "pause_after": 6,
    "db_answer_lost": 6,
    "db_refused": 3,
    "rpc_answer_lost": 5,
    "rpc_refused": 3,
    "send_refused": 4,
    "refused_but_taken": 3,
    "slow_call": 3,
    "key_failure": 1,
}
AT_TIME: Final[Mapping[str, int]] = {
    "db_down": 3,
    "db_waits": 2,
    "db_restart": 1,
    "disk_full": 1,
    "fail_over": 4,
    "rpc_down": 3,
    "rpc_flaky": 3,
    "nonce_lags": 2,
    "nonce_lies": 4,
    "endpoint_lags": 3,
    "blocks_lag": 3,
    "receipts_withheld": 2,
    "evicted": 4,
    "fee_spike": 2,
    "reorg": 6,
    "fork_unwatched": 5,
    "stranger": 1,
    "clock_jump": 3,
    "restart": 3,
    "rolling_restart": 1,
    "killed": 3,
    "hand_over": 1,
    "history_changed": 1,
    "no_blocks": 2,
    "hints_lost": 2,
    "accept_answer_lost": 3,
    "asked": 5,
}
KINDS: Final = (*AT_CALL, *AT_TIME)

# What tends to spoil the same thing, and is worse together than each alone: the first is in every run of the theme.
THEMES: Final = (
    ("pause_before", "pause_after", "slow_call", "db_waits", "clock_jump", "restart"),
    ("crash_after", "crash_before", "killed", "hand_over", "db_answer_lost", "hints_lost"),
    ("fail_over", "db_restart", "history_changed", "fee_spike", "nonce_lags", "evicted", "killed"),
    ("fork_unwatched", "reorg", "killed", "blocks_lag", "endpoint_lags", "restart", "no_blocks"),
    ("nonce_lies", "nonce_lags", "receipts_withheld", "stranger", "endpoint_lags"),
    ("send_refused", "refused_but_taken", "rpc_answer_lost", "rpc_flaky", "evicted", "fee_spike"),
    ("asked", "no_blocks", "killed", "accept_answer_lost", "stranger", "reorg"),
)

# In every other run of this theme commits are lost in the worst of ways.
LOSSY: Final = next(index for index, theme in enumerate(THEMES) if theme[0] == "fail_over")

_WISHES: Final = (*("cancel", "protect") * 2, "bump", "suspend", "resubmit", "pause", "unprotect")
_REORGS: Final = ("dropped", "pooled", "included", "included", "partly", "replaced")


@dataclass(frozen=True, slots=True)
class Setup:
    nodes: int
    signers: int
    strict: bool
    required: int
    block_s: float
    resubmit_s: float
    stale_s: float
    max_in_flight: int
    bump: bool
    idle_release_s: float
    same_names: bool
    chain_query_off: bool
    state_timeout_s: float
    receipt_upon_entry: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as a caller makes it: `number` is its value in wei, so that the chain itself says whose it is."""

    number: int
    at_s: float
    signer: int
    by_handler: bool


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    at_s: float = 0.0  # for those that hit a moment
    slot: int = 0
    call: str = ""  # for those that hit a call
    nth: int = 0
    length_s: float = 0.0
    size: int = 0
    flavour: str = ""

    def __str__(self) -> str:
        where = f"at call {self.nth} of {self.call}" if self.call else f"at {self.at_s:.2f} s"
        more = [
            f"{self.length_s:.2f} s" if self.length_s else "",
            f"size {self.size}" if self.size else "",
            self.flavour,
        ]
        whose = "anybody" if self.slot == ANYBODY else f"n{self.slot}"
        return f"{self.kind} ({whose}) {where} {' '.join(part for part in more if part)}".rstrip()


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    setup: Setup
    requests: tuple[Asked, ...]
    faults: tuple[Fault, ...]
    length_s: float


def make_plan(seed: int) -> Plan:
    rng = random.Random(f"plan {seed}")
    theme, turn = seed % (len(THEMES) + 1), seed // (len(THEMES) + 1)
    if theme == LOSSY and turn % 2:
        return _while_commits_are_lost(rng, seed)
    setup = _setup(rng)
    length_s = rng.choice((16.0, 28.0, 40.0))
    requests = _requests(rng, setup, length_s)
    kinds = _kinds(rng, theme)
    busy_s = [min(asked.at_s + rng.uniform(-0.5, 4.0), length_s) for asked in requests]
    moments = [*busy_s, *(rng.uniform(1.0, length_s) for _ in busy_s)]
    faults = [_fault(rng, rng.choice(kinds), setup, rng.choice(moments)) for _ in range(rng.randint(2, 12))]
    faults = [_while_something_has_ended(fault, rng, length_s) for fault in faults]
    return Plan(seed, setup, requests, tuple(faults), length_s)


def _while_commits_are_lost(rng: random.Random, seed: int) -> Plan:
    """A steady load in front of a full window; then all that hides from a promoted replica what was sent without it.

    Pools forget some of that, functions that nobody has any more leave their places to what was asked for behind them,
    and a person and a death come into what follows.
    """
    setup = replace(_setup(rng), signers=1, strict=False, max_in_flight=rng.choice((4, 4, 16)))
    every_s, length_s = rng.uniform(0.6, 0.9), 35.0
    in_turn = rng.randint(1, 3)  # one of so many is no function
    requests = tuple(
        Asked(number, at_s=1.5 + every_s * (number - 1), signer=0, by_handler=number % in_turn != 0)
        for number in range(1, 17)
    )
    at_s, lost_s = rng.uniform(7.0, 14.0), rng.uniform(1.2, 4.0)
    held_s = rng.choice((3.0, 9.0))
    faults = [
        Fault("no_blocks", at_s=at_s - lost_s, length_s=lost_s + held_s),
        *(
            Fault("evicted", at_s=at_s + rng.uniform(-0.2, 0.2), size=rng.randint(0, 5))
            for _ in range(rng.randint(1, 3))
        ),
        Fault("fail_over", at_s=at_s, length_s=lost_s),
    ]
    if _chance(rng, 0.5):
        wishes = ("pause", "unpause", "cancel")
        faults += [
            Fault("asked", at_s=at_s + 2.5 + 0.1 * n, size=n // 2, flavour=wish)
            for n, wish in enumerate(wishes)
        ]
        faults += [Fault("killed", at_s=at_s + 6.0, slot=slot, length_s=1.0) for slot in range(setup.nodes)]
    return Plan(seed, setup, requests, tuple(faults), length_s)


def _while_something_has_ended(fault: Fault, rng: random.Random, length_s: float) -> Fault:
    """A fork that nobody sees undoes what has ended a moment before."""
    if fault.kind != "fork_unwatched":
        return fault
    down_s = rng.uniform(1.0, 5.0)
    return replace(fault, at_s=min(fault.at_s + rng.uniform(2.0, 8.0), length_s - down_s), length_s=down_s)


def _kinds(rng: random.Random, theme: int) -> list[str]:
    """Few a run, several of each: what goes wrong together is what a mean over all kinds would hide."""
    if theme < len(THEMES):
        first, *others = THEMES[theme]
        others = rng.sample(others, rng.randint(1, 3))
        return [first] * len(others) + others
    weights = {**AT_CALL, **AT_TIME}
    return rng.choices(list(weights), list(weights.values()), k=rng.randint(1, 5))


def _requests(rng: random.Random, setup: Setup, length_s: float) -> tuple[Asked, ...]:
    """One now and then, or many at once; in some runs functions ask, too."""
    moments = [rng.uniform(0.5, length_s * 0.8) for _ in range(rng.choice((2, 3, 12, 12)))]
    share_by_handlers = rng.choice((0.0, 0.0, 0.4))
    return tuple(
        Asked(
            number=number,
            at_s=rng.choice(moments),
            signer=rng.randrange(setup.signers),
            by_handler=_chance(rng, share_by_handlers),
        )
        for number in range(1, rng.randint(3, 12) + 1)
    )


def _chance(rng: random.Random, share: float) -> bool:
    return rng.random() < share


def _setup(rng: random.Random) -> Setup:
    strict = _chance(rng, 0.4)
    return Setup(
        nodes=rng.choice((2, 2, 2, 3, 3, 4)),
        signers=rng.choice((1, 1, 2, 2, 3)),
        strict=strict,
        required=rng.choice((0, 0, 1, 1, 2, 3)),
        block_s=rng.choice((1.0, 2.0, 3.0)),
        resubmit_s=rng.choice((4.0, 8.0, 15.0)),
        stale_s=rng.choice((6.0, 12.0)),
        max_in_flight=rng.choice((2, 4, 16)),
        bump=_chance(rng, 0.4),
        idle_release_s=rng.choice((3.0, 8.0, 30.0)),
        same_names=_chance(rng, 0.15),
        chain_query_off=_chance(rng, 0.2),
        state_timeout_s=rng.choice((1.0, TTL_S)),
        receipt_upon_entry=_chance(rng, 0.2),
    )


def _fault(rng: random.Random, kind: str, setup: Setup, at_s: float) -> Fault:
    slot = rng.randrange(setup.nodes)
    if kind in AT_CALL:
        return _at_call(rng, kind, rng.choice((slot, ANYBODY)))
    fault = Fault(kind, at_s=max(0.0, at_s), slot=slot)
    return _detailed(rng, fault, setup)


def _at_call(rng: random.Random, kind: str, slot: int) -> Fault:
    flavour = ""
    if kind == "send_refused":
        flavour = rng.choice((*_REFUSALS, SendCategory.FATAL, SendCategory.FATAL, *(MIXED,) * 5))
    elif kind == "refused_but_taken":
        flavour = rng.choice(_LIES_ABOUT_SENDS).value
    call = rng.choice(_CALLS_OF.get(kind, _ANY_CALL))
    nth = rng.randint(1, 120) if call == "any" else 1 + int(rng.expovariate(0.25))
    length_s = 0.0
    if kind.startswith("pause"):
        # Mostly until shortly after somebody else has taken over: then two are at it.
        length_s = rng.choice((rng.uniform(0.2, 1.0), rng.uniform(0.85, 1.4), rng.uniform(1.0, 3.0))) * TTL_S
    elif kind.startswith("crash"):
        length_s = rng.uniform(0.1, 1.5) * TTL_S  # until it is started again
    elif kind == "slow_call":
        length_s = rng.uniform(0.5, 1.2 * TTL_S)
    return Fault(kind, slot=slot, call=call, nth=nth, length_s=length_s, flavour=flavour)


def _detailed(rng: random.Random, fault: Fault, setup: Setup) -> Fault:
    """What a fault of this kind needs to be said besides its moment."""
    size, flavour = 0, ""
    match fault.kind:
        case "db_down" | "rpc_down":
            flavour = rng.choice(("one", "one", "all"))
        case "nonce_lags" | "accept_answer_lost":
            size = rng.randint(1, 12)
        case "nonce_lies":
            size = rng.randint(1, 3)
            flavour = rng.choice(("low", "high", "high"))
        case "evicted" | "endpoint_lags" | "blocks_lag":
            size = rng.randint(1, 15 if fault.kind == "blocks_lag" else 5)
        case "fork_unwatched":  # blocks come while nobody looks
            size, flavour = setup.required + rng.randint(1, 6), rng.choice(_REORGS)
        case "reorg":
            size, flavour = (
                rng.randint(rng.randint(1, setup.required + 1), setup.required + 2),
                rng.choice(_REORGS),
            )
        case "stranger":
            size, flavour = rng.randrange(setup.signers), rng.choice(("next", "instead"))
        case "asked":
            size, flavour = rng.randint(1, 12), rng.choice(_WISHES)
        case _:
            pass
    length_s = _length_s(rng, fault.kind)
    if flavour == "high" and not setup.strict:  # what a node says for longer, and nobody denies, is believed
        length_s = min(length_s, 0.9 * ADOPT_AFTER_S)
    return replace(fault, length_s=length_s, size=size, flavour=flavour)


def _length_s(rng: random.Random, kind: str) -> float:
    if kind == "clock_jump":
        return rng.uniform(-60.0, 60.0)
    if kind == "fail_over":
        return rng.uniform(0.2, 9.0)  # as much of the last commits is lost
    return rng.uniform(0.5, 1.5 * TTL_S)

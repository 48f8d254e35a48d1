"""Choose from a seed what happens in a run: the setup, the requests and the faults.

A fault is due at a time, or at the n-th call of a port by a node. Faults are independent: any of them can be left out
without changing the others, which is how a failing run is shrunk.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fencepost.application.nonce_sync import ADOPT_AFTER_S
from fencepost.domain.send_result import SendCategory

TTL_S: Final = 10.0
SKEW_S: Final = 1.0

# A fault at the n-th call of any node, not of one node.
ANY_SLOT: Final = -1

# Calls that faults hit, weighted towards those that matter.
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

# Pauses matter most while a lease holder has a write or a send in progress.
_ASLEEP_AT: Final = (*("commit",) * 6, *("send",) * 2, "renew", "sign", *_ANY_CALL[::4])

# A slow new lease holder leaves the previous one time to write.
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

# Differs between the transactions of a batch.
MIXED: Final = "mixed"

# What an endpoint may answer although it accepted the bytes.
_LIES_ABOUT_SENDS: Final = (*_REFUSALS, SendCategory.UNKNOWN, SendCategory.NONCE_TOO_LOW)

# Kind → weight. These hit a call; those below are due at a time.
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
    "restored": 4,
    "rpc_down": 3,
    "rpc_flaky": 3,
    "rpc_dead": 2,
    "repointed": 3,
    "nonce_lags": 2,
    "wrong_nonce": 4,
    "endpoint_lags": 3,
    "blocks_lag": 3,
    "receipts_withheld": 2,
    "evicted": 4,
    "fee_spike": 2,
    "reorg": 6,
    "fork_unwatched": 5,
    "foreign_transaction": 1,
    "clock_jump": 3,
    "restart": 3,
    "rolling_restart": 2,
    "killed": 3,
    "hand_over": 1,
    "history_changed": 1,
    "no_blocks": 2,
    "hints_lost": 2,
    "accept_answer_lost": 3,
    "operator_command": 5,
}
# Faults of the caller's own code. They use a generator of their own, so that other plans stay the same.
BY_CALLERS: Final = ("stuck_hook",)

# How a stuck hook misbehaves.
HOOK_FLAVOURS: Final = ("raises", "hangs", "odd", "filler", "wait", "mark")
WITH_HOOKS: Final = 0.15  # of all runs
# These start at a time and last to the end, in addition to the other faults of a plan.
PERMANENT: Final = ("signer_refuses", "read_refused")
KINDS: Final = (*AT_CALL, *AT_TIME, *BY_CALLERS, *PERMANENT)

# Kinds that affect the same thing and are worse together. Every run of a theme has its first kind.
THEMES: Final = (
    ("pause_before", "pause_after", "slow_call", "db_waits", "clock_jump", "restart"),
    ("crash_after", "crash_before", "killed", "hand_over", "db_answer_lost", "hints_lost"),
    (
        "fail_over",
        "restored",
        "db_restart",
        "history_changed",
        "fee_spike",
        "nonce_lags",
        "evicted",
        "killed",
    ),
    (
        "restored",
        "foreign_transaction",
        "killed",
        "reorg",
        "endpoint_lags",
        "blocks_lag",
        "no_blocks",
        "operator_command",
    ),
    ("fork_unwatched", "reorg", "killed", "blocks_lag", "endpoint_lags", "restart", "no_blocks"),
    ("wrong_nonce", "nonce_lags", "receipts_withheld", "foreign_transaction", "endpoint_lags", "repointed"),
    ("send_refused", "refused_but_taken", "rpc_answer_lost", "rpc_flaky", "rpc_dead", "evicted", "fee_spike"),
    ("operator_command", "no_blocks", "killed", "accept_answer_lost", "foreign_transaction", "reorg"),
)

# Every second run of this theme loses commits in the worst way.
LOSSY: Final = next(index for index, theme in enumerate(THEMES) if theme[0] == "fail_over")

# In every eighth run of this theme the fork removes more blocks than a node checks at once.
FORKED: Final = next(index for index, theme in enumerate(THEMES) if theme[0] == "fork_unwatched")
ALL_BLOCKS: Final = 1_000_000

_COMMANDS: Final = (*("cancel", "protect") * 2, "bump", "suspend", "resubmit", "pause", "unprotect")

# Reads that Fencepost can do without.
OPTIONAL_READS: Final = ("balance_wei", "estimate_gas", "revert_reason", "block_receipts")

# Reads that it needs: only one node lacks them, and the others have to take its signers over.
NEEDED_READS: Final = ("nonce", "receipts", "quote_fees")
_REORGS: Final = ("dropped", "pooled", "included", "included", "partly", "replaced")


# PostgreSQL identifies a restored backup as another database, but not a disk snapshot.
_COPIES: Final = ("copy", "snapshot", "snapshot")


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
    resubmit_limit: int = 0  # sends before the stuck hook is called; 0: never


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request of a caller. Its `number` is also its value in wei, so that the chain identifies it."""

    number: int
    at_s: float
    signer: int
    by_handler: bool


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    at_s: float = 0.0  # of faults that are due at a time
    slot: int = 0
    call: str = ""  # of faults that hit a call
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
        whose = "any node" if self.slot == ANY_SLOT else f"n{self.slot}"
        return f"{self.kind} ({whose}) {where} {' '.join(part for part in more if part)}".rstrip()


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    setup: Setup
    requests: tuple[PlannedRequest, ...]
    faults: tuple[Fault, ...]
    length_s: float


def make_plan(seed: int) -> Plan:
    rng = random.Random(f"plan {seed}")
    theme, turn = seed % (len(THEMES) + 1), seed // (len(THEMES) + 1)
    if theme == LOSSY and turn % 2:
        return _while_commits_are_lost(rng, seed)
    if theme == FORKED and turn % 8 == 1:
        return _after_many_have_ended(rng, seed)
    return _with_hooks(_mixed(rng, seed, theme))


def _with_hooks(plan: Plan) -> Plan:
    """Add a misbehaving stuck hook and a low send limit to some plans."""
    rng = random.Random(f"hooks {plan.seed}")
    if not _chance(rng, WITH_HOOKS):
        return plan
    hooks = [
        Fault(
            "stuck_hook",
            at_s=rng.uniform(1.0, plan.length_s),
            length_s=rng.uniform(0.3, 1.5) * plan.length_s,
            size=1 + HOOK_FLAVOURS.index(flavour),
            flavour=flavour,
        )
        for flavour in rng.sample(HOOK_FLAVOURS, 2)
    ]
    blocks = Fault("no_blocks", at_s=rng.uniform(1.0, plan.length_s), length_s=rng.uniform(5.0, 20.0))
    setup = replace(plan.setup, resubmit_limit=rng.choice((1, 2)), resubmit_s=4.0)
    return replace(plan, setup=setup, faults=(*plan.faults, blocks, *hooks))


def _after_many_have_ended(rng: random.Random, seed: int) -> Plan:
    """Plan an idle signer, a busy one that ends in more blocks than a node checks at once, and then a fork.

    The fork removes every block while all nodes are down, so a node finds the idle signer only in a later batch.
    """
    setup = replace(
        _setup(rng), nodes=2, signers=2, strict=False, max_in_flight=16, block_s=1.0, idle_release_s=3.0
    )
    every_s, count = 0.9, 130
    requests = (
        PlannedRequest(1, at_s=1.0, signer=0, by_handler=False),
        *(
            PlannedRequest(number, at_s=4.0 + every_s * number, signer=1, by_handler=False)
            for number in range(2, count + 2)
        ),
    )
    at_s = 4.0 + every_s * (count + 2) + 6.0
    fork = Fault(
        "fork_unwatched",
        at_s=at_s,
        length_s=4.0,
        size=ALL_BLOCKS,
        flavour=rng.choice(("included", "included", "pooled", "dropped")),
    )
    return Plan(seed, setup, requests, (fork,), at_s + 10.0)


def _mixed(rng: random.Random, seed: int, theme: int) -> Plan:
    setup = _setup(rng)
    length_s = rng.choice((16.0, 28.0, 40.0))
    requests = _requests(rng, setup, length_s)
    kinds = _kinds(rng, theme)
    busy_s = [min(asked.at_s + rng.uniform(-0.5, 4.0), length_s) for asked in requests]
    moments = [*busy_s, *(rng.uniform(1.0, length_s) for _ in busy_s)]
    faults = [_fault(rng, rng.choice(kinds), setup, rng.choice(moments)) for _ in range(rng.randint(2, 12))]
    faults = [_while_something_has_ended(fault, rng, length_s) for fault in faults]
    return Plan(seed, setup, requests, (*faults, *_beside(seed, setup, faults, length_s)), length_s)


def _beside(seed: int, setup: Setup, faults: Sequence[Fault], length_s: float) -> list[Fault]:
    """Add operator commands during the other faults, and permanent rejections.

    It uses a generator of its own, so the other faults of a seed stay the same.
    """
    rng = random.Random(f"beside {seed}")
    beside: list[Fault] = []
    if _chance(rng, 0.4):
        for fault in faults:
            if fault.kind != "operator_command" and _chance(rng, 0.5):
                during_s = min(fault.at_s + rng.uniform(0.0, max(1.0, fault.length_s)), length_s)
                command = rng.choice((*_COMMANDS, "withdraw"))
                beside.append(
                    Fault(
                        "operator_command", at_s=max(0.0, during_s), size=rng.randint(1, 12), flavour=command
                    )
                )
    if _chance(rng, 0.2):
        at_s, number = rng.uniform(0.0, length_s / 2), rng.randint(1, 8)
        beside.append(Fault("signer_refuses", at_s=at_s, size=number))
    if _chance(rng, 0.2):
        beside.append(
            Fault(
                "read_refused",
                at_s=rng.uniform(0.0, length_s / 2),
                slot=rng.randrange(setup.nodes),
                size=rng.randint(0, 1),
                flavour=rng.choice(OPTIONAL_READS),
            )
        )
    return [*beside, *_needed_read_refused(seed, setup, length_s)]


def _needed_read_refused(seed: int, setup: Setup, length_s: float) -> list[Fault]:
    """In some runs one node's endpoint refuses for good what lanes can't do without."""
    rng = random.Random(f"needed {seed}")
    if not _chance(rng, 0.1):
        return []
    at_s, slot = rng.uniform(0.0, length_s / 2), rng.randrange(setup.nodes)
    flavour = rng.choice(NEEDED_READS)
    return [Fault("read_refused", at_s=at_s, slot=slot, size=rng.randint(0, 1), flavour=flavour)]


def _while_commits_are_lost(rng: random.Random, seed: int) -> Plan:
    """Plan a steady load on a full window, and a fail-over whose lost transactions are hard to find.

    Pools drop some of them, handlers are lost with their process so that later requests get their nonces, and an operator
    command and a kill follow.
    """
    setup = replace(_setup(rng), signers=1, strict=False, max_in_flight=rng.choice((4, 4, 16)))
    every_s, length_s = rng.uniform(0.6, 0.9), 35.0
    in_turn = rng.randint(1, 3)  # every n-th request has no handler
    requests = tuple(
        PlannedRequest(number, at_s=1.5 + every_s * (number - 1), signer=0, by_handler=number % in_turn != 0)
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
        Fault("fail_over", at_s=at_s, length_s=lost_s)
        if _chance(rng, 0.6)
        else Fault("restored", at_s=at_s, length_s=lost_s, flavour=rng.choice(_COPIES)),
    ]
    if _chance(rng, 0.5):
        commands = ("pause", "unpause", "cancel")
        faults += [
            Fault("operator_command", at_s=at_s + 2.5 + 0.1 * n, size=n // 2, flavour=command)
            for n, command in enumerate(commands)
        ]
        faults += [Fault("killed", at_s=at_s + 6.0, slot=slot, length_s=1.0) for slot in range(setup.nodes)]
    return Plan(seed, setup, requests, tuple(faults), length_s)


def _while_something_has_ended(fault: Fault, rng: random.Random, length_s: float) -> Fault:
    """Move an unwatched fork to a time at which transactions have just ended."""
    if fault.kind != "fork_unwatched":
        return fault
    down_s = rng.uniform(1.0, 5.0)
    return replace(fault, at_s=min(fault.at_s + rng.uniform(2.0, 8.0), length_s - down_s), length_s=down_s)


def _kinds(rng: random.Random, theme: int) -> list[str]:
    """Choose few kinds for a run, with several faults of each, because combinations find more than a mix of all kinds."""
    if theme < len(THEMES):
        first, *other_attempts = THEMES[theme]
        other_attempts = rng.sample(other_attempts, rng.randint(1, 3))
        return [first] * len(other_attempts) + other_attempts
    weights = {**AT_CALL, **AT_TIME}
    return rng.choices(list(weights), list(weights.values()), k=rng.randint(1, 5))


def _requests(rng: random.Random, setup: Setup, length_s: float) -> tuple[PlannedRequest, ...]:
    """Plan requests at single times or in bursts; some plans have handlers, too."""
    moments = [rng.uniform(0.5, length_s * 0.8) for _ in range(rng.choice((2, 3, 12, 12)))]
    share_by_handlers = rng.choice((0.0, 0.0, 0.4))
    return tuple(
        PlannedRequest(
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
        return _at_call(rng, kind, rng.choice((slot, ANY_SLOT)))
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
        # Mostly until shortly after a take-over: then two processes act for the signer.
        length_s = rng.choice((rng.uniform(0.2, 1.0), rng.uniform(0.85, 1.4), rng.uniform(1.0, 3.0))) * TTL_S
    elif kind.startswith("crash"):
        length_s = rng.uniform(0.1, 1.5) * TTL_S  # until it is started again
    elif kind == "slow_call":
        length_s = rng.uniform(0.5, 1.2 * TTL_S)
    return Fault(kind, slot=slot, call=call, nth=nth, length_s=length_s, flavour=flavour)


def _detailed(rng: random.Random, fault: Fault, setup: Setup) -> Fault:
    """Add the size, duration and flavour that a fault of this kind needs."""
    size, flavour = 0, rng.choice(_COPIES) if fault.kind == "restored" else ""
    match fault.kind:
        case "db_down" | "rpc_down":
            flavour = rng.choice(("one", "one", "all"))
        case "nonce_lags" | "accept_answer_lost":
            size = rng.randint(1, 12)
        case "wrong_nonce":
            size = rng.randint(1, 3)
            flavour = rng.choice(("low", "high", "high"))
        case "evicted" | "endpoint_lags" | "blocks_lag":
            size = rng.randint(1, 15 if fault.kind == "blocks_lag" else 5)
        case "fork_unwatched":  # blocks are mined while no node runs
            size, flavour = setup.required + rng.randint(1, 6), rng.choice(_REORGS)
        case "reorg":
            size, flavour = (
                rng.randint(rng.randint(1, setup.required + 1), setup.required + 2),
                rng.choice(_REORGS),
            )
        case "foreign_transaction":
            size, flavour = rng.randrange(setup.signers), rng.choice(("next", "instead"))
        case "operator_command":
            size, flavour = rng.randint(1, 12), rng.choice(_COMMANDS)
        case _:
            size, flavour = _endpoint_detail(rng, fault.kind)
    length_s = _length_s(rng, fault.kind)
    if (
        flavour == "high" and not setup.strict
    ):  # a node believes a higher nonce that lasts longer and that no endpoint contradicts
        length_s = min(length_s, 0.9 * ADOPT_AFTER_S)
    return replace(fault, length_s=length_s, size=size, flavour=flavour)


def _endpoint_detail(rng: random.Random, kind: str) -> tuple[int, str]:
    """Return the height difference of the other chain, and whether its endpoint is the only one."""
    if kind != "repointed":
        return 0, ""
    return rng.choice((-3, 2, 600)), rng.choice(("lone", "lone", "one of two"))


def _length_s(rng: random.Random, kind: str) -> float:
    if kind == "clock_jump":
        return rng.uniform(-60.0, 60.0)
    if kind in ("fail_over", "restored"):
        return rng.uniform(0.2, 9.0)  # commits of this many seconds are lost
    return rng.uniform(0.5, 1.5 * TTL_S)

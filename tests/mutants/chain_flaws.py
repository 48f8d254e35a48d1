"""Flaws of reading the chain: receipts, forks, depth, foreign transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fencepost.application import lane_round, reconcile, track
from fencepost.application.lane import Lane
from fencepost.domain import confirmations
from fencepost.domain.confirmations import BlockStatus, Confirmations
from fencepost.domain.ids import TxHash
from fencepost.domain.transaction_state import ManagedTx, Receipt
from fencepost.runtime import head_follower, pending_forks
from fencepost.runtime.head_follower import HeadFollower
from lab.sim.ports import ChainPort
from mutants.planting import Change


def latest_attempt_only() -> list[Change]:
    def hashes_of(txs: Sequence[ManagedTx]) -> list[TxHash]:
        return [tx.latest.signed.hash for tx in txs]

    def receipt_of(tx: ManagedTx, found: Mapping[TxHash, Receipt]) -> Receipt | None:
        return found.get(tx.latest.signed.hash)

    return [
        (track, "hashes_of", hashes_of),
        (track, "receipt_of", receipt_of),
    ]


def ignores_forks() -> list[Change]:
    honest = confirmations.confirm

    def confirm(block: Any, view: Any, **kwargs: Any) -> Confirmations:
        said = honest(block, view, **kwargs)
        if said.block_status is not BlockStatus.ORPHANED:
            return said
        deep = kwargs["required"] is not None and view.head - block.number >= kwargs["required"]
        return said.changed(block_status=BlockStatus.CANONICAL, new_fork=False, is_final=deep)

    return [(track, "confirm", confirm)]


def no_depth() -> list[Change]:
    honest = confirmations.confirm

    def confirm(block: Any, view: Any, **kwargs: Any) -> Confirmations:
        return honest(block, view, **{**kwargs, "required": 0})

    return [(track, "confirm", confirm)]


def ended_is_ended() -> list[Change]:
    async def nothing(lane: Lane, **_: Any) -> int:
        lane.blocks.forked_at = None
        return 0

    return [(lane_round, "reopen_undone", nothing), (reconcile, "reopen_undone", nothing)]


def strangers_overlooked() -> list[Change]:
    async def nothing(_lane: Lane, _missing: Any) -> None:
        return

    return [(track, "_handle_missing", nothing)]


def protect_sends() -> list[Change]:
    return [(Lane, "is_protected", property(lambda _: False))]


def take_over_does_not_look_back() -> list[Change]:
    """Check ended transactions only when a fork is seen, not at a take-over."""

    async def nothing(_lane: Lane, **_: Any) -> int:
        return 0

    return [(reconcile, "reopen_undone", nothing), *_forks_die_with_their_lane()]


def _forks_die_with_their_lane() -> list[Change]:
    """Drop pending forks with their lane; otherwise the node would make up for the flaw."""
    return [(pending_forks, "FORK_TTL_S", -1.0), (head_follower, "CHECK_DELAYS_S", (0.0,))]


def beyond_the_view_stands() -> list[Change]:
    """Assume that a block which the view has not reached is canonical for ever."""
    honest = reconcile._is_undone

    async def is_undone(lane: Lane, tx: ManagedTx, latest: int) -> bool:
        undone = await honest(lane, tx, latest)
        lane.blocks.unseen_from = None
        return undone

    return [
        (reconcile, "_is_undone", is_undone),
        *_forks_die_with_their_lane(),
        *start_does_not_look_back(),  # a restarted node would find it
    ]


def any_chain_will_do() -> list[Change]:
    """Never check again which chain an endpoint serves."""

    async def nothing(_self: ChainPort) -> None:
        return

    return [(ChainPort, "check_identity", nothing)]


def start_does_not_look_back() -> list[Change]:
    async def nothing(_self: HeadFollower, _chain_id: int) -> None:
        return

    return [(HeadFollower, "_check_ended_blocks", nothing)]

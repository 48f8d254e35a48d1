"""Flaws of looking at the chain: receipts, forks, depth, strangers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fencepost.application import reconcile, step, sweep, track
from fencepost.application.lane import Lane
from fencepost.domain import confirmations
from fencepost.domain.confirmations import Confirmations, Standing
from fencepost.domain.ids import TxHash
from fencepost.domain.managed import ManagedTx, Receipt
from fencepost.runtime import following, forks
from fencepost.runtime.following import Following
from mutants.planting import Change


def latest_attempt_only() -> list[Change]:
    def hashes_of(txs: Sequence[ManagedTx]) -> list[TxHash]:
        return [tx.latest.signed.hash for tx in txs]

    def receipt_of(tx: ManagedTx, found: Mapping[TxHash, Receipt]) -> Receipt | None:
        return found.get(tx.latest.signed.hash)

    return [
        (track, "hashes_of", hashes_of),
        (sweep, "hashes_of", hashes_of),
        (track, "receipt_of", receipt_of),
    ]


def ignores_forks() -> list[Change]:
    honest = confirmations.confirm

    def confirm(block: Any, view: Any, **kwargs: Any) -> Confirmations:
        said = honest(block, view, **kwargs)
        if said.standing is not Standing.ORPHANED:
            return said
        deep = kwargs["required"] is not None and view.head - block.number >= kwargs["required"]
        return said.changed(standing=Standing.CANONICAL, new_fork=False, is_final=deep)

    return [(track, "confirm", confirm)]


def no_depth() -> list[Change]:
    honest = confirmations.confirm

    def confirm(block: Any, view: Any, **kwargs: Any) -> Confirmations:
        return honest(block, view, **{**kwargs, "required": 0})

    return [(track, "confirm", confirm)]


def ended_is_ended() -> list[Change]:
    async def nothing(lane: Lane, **_: Any) -> int:
        lane.forked_at = None
        return 0

    return [(step, "reopen_undone", nothing), (reconcile, "reopen_undone", nothing)]


def strangers_overlooked() -> list[Change]:
    async def nothing(_lane: Lane, _missing: Any) -> None:
        return

    return [(track, "_judge_missing", nothing)]


def protect_sends() -> list[Change]:
    return [(Lane, "is_protected", property(lambda _: False))]


def take_over_does_not_look_back() -> list[Change]:
    """What has ended is looked at when a fork is seen, and only then."""

    async def nothing(_lane: Lane, **_: Any) -> int:
        return 0

    return [(reconcile, "reopen_undone", nothing), *_forks_die_with_their_lane()]


def _forks_die_with_their_lane() -> list[Change]:
    """Otherwise a node that has seen a fork makes up for what a take-over does not do."""
    return [(forks, "FORK_KEPT_S", -1.0), (following, "ASK_AFTER_S", (0.0,))]


def beyond_the_view_stands() -> list[Change]:
    """What ended in a block that the view has not reached is taken for standing, once and for all."""
    honest = reconcile._is_undone

    async def is_undone(lane: Lane, tx: ManagedTx, latest: int) -> bool:
        undone = await honest(lane, tx, latest)
        lane.unseen_from = None
        return undone

    return [
        (reconcile, "_is_undone", is_undone),
        *_forks_die_with_their_lane(),
        *start_does_not_look_back(),  # whoever comes back would find it
    ]


def start_does_not_look_back() -> list[Change]:
    async def nothing(_self: Following, _chain_id: int) -> None:
        return

    return [(Following, "_look_back", nothing)]

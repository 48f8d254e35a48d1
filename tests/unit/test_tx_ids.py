"""Ids of transactions rise, are of version 7, and never repeat."""

from __future__ import annotations

import copy
import os
import time
from uuid import RFC_4122, UUID

import pytest

from fencepost.application.tx_ids import TxIds, new_tx_id


def ms_of(tx_id: UUID) -> int:
    return tx_id.int >> 80


def test_they_are_uuids_of_version_7() -> None:
    tx_id = new_tx_id()
    assert (tx_id.version, tx_id.variant) == (7, RFC_4122)
    same = UUID(str(tx_id))
    assert (same, hash(same), same.is_safe) == (tx_id, hash(tx_id), tx_id.is_safe)
    assert copy.deepcopy(tx_id) == tx_id


def test_each_is_larger_than_the_one_before() -> None:
    made = [new_tx_id() for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_they_tell_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_123_456_789)
    assert ms_of(TxIds().next()) == 1_700_000_000_123


def test_they_rise_though_the_clock_stands_or_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = TxIds()
    now_ns = iter([10**18, 10**18, 10**18 - 5 * 10**9, 10**18 + 10**9])
    monkeypatch.setattr(time, "time_ns", lambda: next(now_ns))
    made = [ids.next() for _ in range(4)]
    assert made == sorted(made)
    assert [ms_of(tx_id) for tx_id in made] == [10**12, 10**12, 10**12, 10**12 + 1000]


def test_a_forked_process_draws_its_own() -> None:
    ids = TxIds()
    ids.next()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, ids.next().bytes)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    theirs, ours = UUID(bytes=os.read(reading, 16)), ids.next()
    assert theirs.int % 2**62 != ours.int % 2**62
    os.close(reading)
    os.close(writing)

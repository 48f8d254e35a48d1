"""Transaction ids rise, have UUID version 7, and never repeat."""

from __future__ import annotations

import copy
import os
import time
from uuid import RFC_4122, UUID

from fencepost.application.uuid7 import new_tx_id


def ms_of(tx_id: UUID) -> int:
    return tx_id.int >> 80


def test_ids_are_uuids_of_version_7() -> None:
    tx_id = new_tx_id()
    assert type(tx_id) is UUID
    assert (tx_id.version, tx_id.variant) == (7, RFC_4122)
    same = UUID(str(tx_id))
    assert (same, hash(same), same.is_safe) == (tx_id, hash(tx_id), tx_id.is_safe)
    assert copy.deepcopy(tx_id) == tx_id


def test_each_id_is_larger_than_the_previous() -> None:
    made = [new_tx_id() for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_contain_the_time() -> None:
    before_ms = time.time_ns() // 1_000_000
    made_ms = ms_of(new_tx_id())
    assert before_ms <= made_ms <= time.time_ns() // 1_000_000 + 1


def test_a_forked_process_generates_its_own_ids() -> None:
    new_tx_id()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, new_tx_id().bytes)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    theirs, ours = UUID(bytes=os.read(reading, 16)), new_tx_id()
    assert theirs.int % 2**32 != ours.int % 2**32  # the random bits, whatever the time and the counter
    os.close(reading)
    os.close(writing)

"""Saved evidence has the transactions and signers that the violations name, and no others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from click.testing import CliRunner

from fencepost.adapters.evm.rpc import JsonRpc
from lab.checker import evidence
from lab.checker.history import CursorRow, History, JournalLine, TxRow
from lab.checker.invariants import Violation
from lab.commands.chaos import chaos


class OneAnswer:
    async def call(self, method: str, params: Sequence[Any] = ()) -> str:
        del method, params
        return "0x1"


async def test_evidence_that_a_violation_names_is_kept(tmp_path: Path) -> None:
    history = History(
        required_depth=2,
        txs=tuple(TxRow(f"tx-{s}", s, "r", "CONFIRMED", "e") for s in ("0xaa", "0xbb")),
        cursors=tuple(CursorRow(s, 0, 1) for s in ("0xaa", "0xbb")),
        lines=tuple(
            JournalLine(number, number, s, "Finish", f"tx-{s}") for number, s in ((1, "0xaa"), (2, "0xbb"))
        ),
    )
    broken = Violation(9, "tx-0xaa is CONFIRMED in block 61, which is not canonical", "0xaa, block 3")
    await evidence.save(tmp_path, cast("JsonRpc", OneAnswer()), history, [broken])
    kept = json.loads((tmp_path / evidence.FILE).read_text(encoding="utf-8"))
    assert [tx["tx_id"] for tx in kept["transactions"]] == ["tx-0xaa"]
    assert [line["id"] for line in kept["journal"]] == [1]
    assert list(kept["signers"]) == ["0xaa"]


def test_a_run_reads_only_its_own_logs(tmp_path: Path) -> None:
    (tmp_path / "node-1.log").write_text('{"message":"fenced"}')
    result = CliRunner().invoke(chaos, ["--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "choose another folder" in result.output

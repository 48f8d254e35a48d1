"""What is kept of a run that broke something: the transactions and signers that the violations name, and no others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from click.testing import CliRunner

from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.cli.lab_chaos import chaos
from fencepost.lab import evidence
from fencepost.lab.checker import Violation
from fencepost.lab.history import CursorRow, History, Line, TxRow


class OneAnswer:
    async def call(self, method: str, params: Sequence[Any] = ()) -> str:
        del method, params
        return "0x1"


async def test_what_the_violations_name_is_kept(tmp_path: Path) -> None:
    history = History(
        required_depth=2,
        txs=tuple(TxRow(f"tx-{s}", s, "r", "CONFIRMED", "e") for s in ("0xaa", "0xbb")),
        cursors=tuple(CursorRow(s, 0, 1) for s in ("0xaa", "0xbb")),
        lines=tuple(Line(number, number, s, "Finish", f"tx-{s}") for number, s in ((1, "0xaa"), (2, "0xbb"))),
    )
    broken = Violation(9, "tx-0xaa is CONFIRMED in block 61, which is not canonical", "0xaa, block 3")
    await evidence.save(tmp_path, cast("JsonRpc", OneAnswer()), history, [broken])
    kept = json.loads((tmp_path / evidence.FILE).read_text(encoding="utf-8"))
    assert [tx["tx_id"] for tx in kept["transactions"]] == ["tx-0xaa"]
    assert [line["id"] for line in kept["journal"]] == [1]
    assert list(kept["signers"]) == ["0xaa"]


def test_a_run_does_not_take_the_logs_of_another_for_its_own(tmp_path: Path) -> None:
    (tmp_path / "node-1.log").write_text('{"message":"fenced"}')
    result = CliRunner().invoke(chaos, ["--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "name another folder" in result.output

"""A column that is added to `TX_COLUMNS`, and to the table, is written, loaded and decoded without any other change."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

import fencepost

TESTS = Path(__file__).parents[1]
TIMEOUT_S = 60.0

# The aggregate has a field that no column of a transaction in flight holds; the new column holds it.
BEGINS = "TX_COLUMNS = (\n"
ADDED = '    Column("heard_s", "float8", attrgetter("after.received_s"), field="received_s"),\n'

ROUND_TRIP = """
import asyncio, sys
from fakes.ledger_lab import ALICE, attempt, new, open_postgres_lab
from fakes.ledger_steps import APPLIED, held, take
from fencepost.adapters.postgres import columns, lane_writer
from fencepost.application.ports import Cursor, LaneWrite, TxChange

async def main(dsn, is_by_value):
    if not is_by_value:
        lane_writer.MAX_ROWS_BY_VALUE = 0
    async with open_postgres_lab(dsn) as lab:
        ledger = await lab.node("a")
        term, (tx,) = await held(ledger, "order-1")
        taken = take(tx, 0)
        taken = TxChange(tx, taken.after.changed(received_s=12.5), taken.entries)
        assert await ledger.commit(LaneWrite(term, (taken,), cursor_after=Cursor(1, 0))) == APPLIED
        found = await ledger.get(tx.tx_id)
        (in_flight,) = (await ledger.load(ALICE, queue_limit=9)).in_flight
        print(columns.__file__, found.received_s, in_flight.received_s, found.nonce)

asyncio.run(main(sys.argv[1], sys.argv[2] == "by value"))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a folder with a copy of the product that differs in one line."""
    ignored = shutil.ignore_patterns("__pycache__")
    copy = shutil.copytree(Path(fencepost.__file__).parent, tmp_path / "fencepost", ignore=ignored)
    file = copy / "adapters/postgres/columns.py"
    text = file.read_text()
    assert text.count(BEGINS) == 1
    file.write_text(text.replace(BEGINS, BEGINS + ADDED))
    return tmp_path


@pytest.mark.parametrize("way", ["by value", "in arrays"])
async def test_a_column_is_added_in_one_place(dsn: str, package: Path, way: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("ALTER TABLE managed_tx ADD COLUMN heard_s float8")
        program = [sys.executable, "-c", ROUND_TRIP, dsn, way]
        environment = {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{TESTS}"}
        process = await asyncio.create_subprocess_exec(
            *program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        printed, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        assert process.returncode == 0, errors.decode()
        assert printed.decode().split() == [
            str(package / "fencepost/adapters/postgres/columns.py"), "12.5", "12.5", "0",
        ]  # fmt: skip
        assert await connection.fetchval("SELECT heard_s FROM managed_tx") == 12.5
    finally:
        await connection.close()

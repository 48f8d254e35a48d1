"""Run the demo as a newcomer does: everything is mined once, and the demo reports the take-over."""

from __future__ import annotations

import asyncio
import json
import sys
from uuid import uuid4

from fixtures.postgres import run_folder


async def test_the_demo_kills_a_node_at_work_and_reports_the_take_over() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fencepost", "demo", "--json", "--transactions", "60"),
        *("--data-dir", str(run_folder() / f"demo-{uuid4().hex[:8]}")),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    shown = json.loads(out)
    assert (process.returncode, shown["ok"], shown["mined_once"]) == (0, True, 60), shown
    assert shown["killed"].startswith("node-")
    assert shown["failover_s"] > 0

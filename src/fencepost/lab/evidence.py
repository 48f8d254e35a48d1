"""What is kept of a run that broke something, beside the nodes' logs: all that is known of the signers concerned.

A run can't be had again to the letter, so whoever looks into a violation needs it while the chain is still there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.lab.checker import Violation
from fencepost.lab.history import History

FILE = "evidence.json"
_LINES_MOST = 400
_TXS_MOST = 200
_SENDS_MOST = 200


async def save(folder: Path, rpc: JsonRpc, history: History, violations: Sequence[Violation]) -> None:
    told = {
        word.strip(",()")
        for violation in violations
        for word in (violation.what + " " + violation.where).split()
    }
    signers = {cursor.signer for cursor in history.cursors if cursor.signer in told}
    kept = {
        "violations": [str(violation) for violation in violations],
        "transactions": [asdict(tx) for tx in history.txs if tx.tx_id in told][:_TXS_MOST],
        "journal": [asdict(line) for line in history.lines if line.tx_id in told][: _LINES_MOST * 10],
        "head": await rpc.call("eth_blockNumber"),
        "signers": {signer: await _of(signer, rpc, history) for signer in sorted(signers)},
    }
    (folder / FILE).write_text(json.dumps(kept, indent=1, default=str), encoding="utf-8")


async def _of(signer: str, rpc: JsonRpc, history: History) -> dict[str, Any]:
    mined = [
        (block.number, tx.nonce, tx.hash)
        for block in history.blocks
        for tx in block.txs
        if tx.signer == signer
    ]
    return {
        "chainNonce": {
            tag: await rpc.call("eth_getTransactionCount", [signer, tag]) for tag in ("latest", "pending")
        },
        "minedLast": mined[-_TXS_MOST:],
        "pool": [asdict(tx) for tx in history.pool if tx.signer == signer],
        "cursor": [asdict(cursor) for cursor in history.cursors if cursor.signer == signer],
        "terms": [asdict(term) for term in history.terms if term.signer == signer],
        "transactionsLast": [asdict(tx) for tx in history.txs if tx.signer == signer][-_TXS_MOST:],
        "journalLast": [asdict(line) for line in history.lines if line.signer == signer][-_LINES_MOST:],
        "sendsLast": [asdict(sent) for sent in history.sent if sent.tx.signer == signer][-_SENDS_MOST:],
    }

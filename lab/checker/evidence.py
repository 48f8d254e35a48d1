"""Save the evidence of a run with violations: everything that is known about the signers concerned.

A chaos run can't be repeated exactly, so the evidence is saved while the chain still runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fencepost.adapters.evm.rpc import JsonRpc
from lab.checker.history import History
from lab.checker.invariants import Violation

FILE = "evidence.json"
_MAX_LINES = 400
_MAX_TXS = 200
_MAX_SENDS = 200


async def save(folder: Path, rpc: JsonRpc, history: History, violations: Sequence[Violation]) -> None:
    """Write the transactions and signers that the violations name into a file."""
    named = {
        word.strip(",()")
        for violation in violations
        for word in (violation.what + " " + violation.where).split()
    }
    signers = {cursor.signer for cursor in history.cursors if cursor.signer in named}
    kept = {
        "violations": [str(violation) for violation in violations],
        "transactions": [asdict(tx) for tx in history.txs if tx.tx_id in named][:_MAX_TXS],
        "journal": [asdict(line) for line in history.lines if line.tx_id in named][: _MAX_LINES * 10],
        "head": await rpc.call("eth_blockNumber"),
        "signers": {signer: await _signer_evidence(signer, rpc, history) for signer in sorted(signers)},
    }
    (folder / FILE).write_text(json.dumps(kept, indent=1, default=str), encoding="utf-8")


async def _signer_evidence(signer: str, rpc: JsonRpc, history: History) -> dict[str, Any]:
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
        "minedLast": mined[-_MAX_TXS:],
        "pool": [asdict(tx) for tx in history.pool if tx.signer == signer],
        "cursor": [asdict(cursor) for cursor in history.cursors if cursor.signer == signer],
        "terms": [asdict(term) for term in history.terms if term.signer == signer],
        "transactionsLast": [asdict(tx) for tx in history.txs if tx.signer == signer][-_MAX_TXS:],
        "journalLast": [asdict(line) for line in history.lines if line.signer == signer][-_MAX_LINES:],
        "sendsLast": [asdict(sent) for sent in history.sent if sent.tx.signer == signer][-_MAX_SENDS:],
    }

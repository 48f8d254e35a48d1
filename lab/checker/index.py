"""Index a history by what the rules look up, in one pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from lab.checker.history import AttemptRow, ChainBlock, ChainTx, History, JournalLine, TermRow, TxRow

_STORES_BYTES = frozenset({"AssignNonce", "Sign", "Bump", "Fill", "Retype", "Attach"})


@dataclass(slots=True)
class HistoryIndex:
    """Look-ups over one history."""

    history: History
    by_hash: dict[str, AttemptRow] = field(default_factory=dict)
    stored_s: dict[str, float] = field(default_factory=dict)  # hash → time at which its bytes were committed
    on_chain: dict[tuple[str, int], ChainTx] = field(default_factory=dict)
    mined: list[tuple[ChainBlock, ChainTx]] = field(default_factory=list)
    block_hash: dict[int, str] = field(default_factory=dict)
    lines_of_tx: dict[str, list[JournalLine]] = field(default_factory=lambda: defaultdict(list))
    attempts_of_tx: dict[str, list[AttemptRow]] = field(default_factory=lambda: defaultdict(list))
    tx: dict[str, TxRow] = field(default_factory=dict)

    def __post_init__(self) -> None:
        history = self.history
        for attempt in history.attempts:
            self.by_hash[attempt.hash] = attempt
            self.attempts_of_tx[attempt.tx_id].append(attempt)
        self.tx = {tx.tx_id: tx for tx in history.txs}
        for line in history.lines:
            if line.tx_id is not None:
                self.lines_of_tx[line.tx_id].append(line)
            if line.event in _STORES_BYTES and "hash" in line.detail:
                self.stored_s.setdefault(line.detail["hash"], line.committed_s)
        signers = {cursor.signer for cursor in history.cursors} | {tx.signer for tx in history.txs}
        for block in history.blocks:
            self.block_hash[block.number] = block.hash
            for tx in block.txs:
                if tx.signer in signers:
                    self.mined.append((block, tx))
                    self.on_chain.setdefault((tx.signer, tx.nonce), tx)

    @property
    def head(self) -> int:
        return self.history.blocks[-1].number if self.history.blocks else -1

    def is_born_filler(self, tx_id: str) -> bool:
        """Return whether the transaction was created as a filler: it began with a nonce, without a request."""
        return any(
            line.event == "AssignNonce" and line.detail.get("purpose") == "filler"
            for line in self.lines_of_tx[tx_id]
        )

    def sent_or_mined(self) -> Iterator[tuple[ChainTx, str]]:
        """Yield everything that was sent, pooled or mined, with the place where it was seen."""
        for block, tx in self.mined:
            yield tx, f"block {block.number}"
        for tx in self.history.pool:
            yield tx, "pool"
        for sent in self.history.sent:
            yield sent.tx, f"sent via {sent.via or 'an endpoint'}"


def next_terms(history: History) -> dict[tuple[str, int], TermRow | None]:
    """Return the next term of each term; None for the last one of a signer."""
    successors: dict[tuple[str, int], TermRow | None] = {}
    latest: dict[str, TermRow] = {}
    for term in sorted(history.terms, key=lambda term: term.token):
        if term.signer in latest:
            successors[term.signer, latest[term.signer].token] = term
        successors[term.signer, term.token] = None
        latest[term.signer] = term
    return successors


def writes(history: History) -> Iterator[tuple[str, int, int, str]]:
    """Yield signer, token, database transaction and description of every write."""
    for line in history.lines:
        if line.token is not None:
            yield line.signer, line.token, line.xid, f"journal {line.id} {line.event}"
    for tx in history.txs:
        if tx.token is not None:
            yield tx.signer, tx.token, tx.xid, f"transaction {tx.tx_id}"
    for attempt in history.attempts:
        yield attempt.signer, attempt.token, attempt.xid, f"attempt {attempt.number} of {attempt.tx_id}"
    for cursor in history.cursors:
        if cursor.token is not None:
            yield cursor.signer, cursor.token, cursor.xid, "cursor"

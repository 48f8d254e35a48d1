"""The fourteen invariants, each a function that yields its violations. Each rule takes one pass, O(n).

The rules trust no source alone: they compare the database with the chain, the journal with the rows, what was sent with
what was stored, and what was acknowledged with what is there. `check` needs a quiet system: live transactions are
violations.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from fencepost.domain.states import LIVE, TERMINAL, TRANSITIONS
from lab.checker.history import AttemptRow, History, JournalLine
from lab.checker.index import HistoryIndex, next_terms, writes

INVARIANTS: dict[int, str] = {
    1: "each nonce belongs to one request, and each request to one nonce, for ever",
    2: "a signer's nonces are exactly start … next - 1",
    3: "a term makes no write after the next term began",
    4: "tokens rise, and none is issued twice",
    5: "acknowledged requests are there, unchanged",
    6: "bytes are stored before they are sent",
    7: "one intent per nonce: in the database, in the pool, on the chain",
    8: "each request is mined once",
    9: "CONFIRMED means a canonical block at depth, and the journal has every fork",
    10: "nothing is FAILED while its nonce is free",
    11: "states follow the transition table; attempts and fees only rise",
    12: "PROTECT stays until an operator ends it, and nothing is sent under it",
    13: "no write of a term after it was fenced",
    14: "everything finishes when the faults end",
}

_LEGAL = {(old.value, new.value) for old, new in TRANSITIONS}
_LIVE = {state.value for state in LIVE}
_TERMINAL = {state.value for state in TERMINAL}
_LEGACY = 0  # the type of a transaction with one gas price
_GIVEN_UP = frozenset({"FAILED", "CANCELLED"})
_GOES_OUT = frozenset(
    {"AssignNonce", "SubmitTransaction", "Resubmit", "SendResult", "Bump", "Fill", "Sign", "Retype"}
)


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant: its number, what is wrong and where."""

    invariant: int
    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.what} ({self.where})"


Found = Iterator[tuple[str, str]]


def check(history: History) -> list[Violation]:
    """Return all violations of a history."""
    index = HistoryIndex(history)
    return [Violation(number, what, where) for number, rule in _RULES.items() for what, where in rule(index)]


def _one_to_one(index: HistoryIndex) -> Found:
    owner: dict[tuple[str, int], str] = {}
    nonce_of: dict[str, int] = {}
    claims = [
        (line.signer, int(line.detail["nonce"]), line.tx_id)
        for line in index.history.lines
        if line.event == "AssignNonce" and line.tx_id is not None
    ]
    claims += [(tx.signer, tx.nonce, tx.tx_id) for tx in index.history.txs if tx.nonce is not None]
    claims += [(attempt.signer, attempt.nonce, attempt.tx_id) for attempt in index.history.attempts]
    for signer, nonce, tx_id in claims:
        if owner.setdefault((signer, nonce), tx_id) != tx_id:
            yield f"nonce {nonce} belongs to {owner[signer, nonce]} and to {tx_id}", signer
        if nonce_of.setdefault(tx_id, nonce) != nonce:
            yield f"{tx_id} has nonce {nonce_of[tx_id]} and nonce {nonce}", signer
    requests = Counter((tx.signer, tx.request_id) for tx in index.history.txs if tx.request_id is not None)
    for (signer, request_id), count in requests.items():
        if count > 1:
            yield f"request {request_id} has {count} transactions", signer


def _gapless(index: HistoryIndex) -> Found:
    held: dict[str, set[int]] = defaultdict(set)
    for tx in index.history.txs:
        if tx.nonce is not None:
            held[tx.signer].add(tx.nonce)
    ranges = {cursor.signer: range(cursor.start_nonce, cursor.next_nonce) for cursor in index.history.cursors}
    foreign = _foreign_nonces(index)
    for signer in ranges.keys() | held.keys():
        wanted = ranges.get(signer, range(0))
        for nonce in sorted(set(wanted) - held[signer] - foreign[signer]):
            yield f"nonce {nonce} has no transaction", signer
        for nonce in sorted(held[signer] - set(wanted)):
            yield f"nonce {nonce} lies outside {wanted.start} … {wanted.stop - 1}", signer


def _foreign_nonces(index: HistoryIndex) -> dict[str, set[int]]:
    """Return the nonces that were skipped because the chain has foreign transactions there."""
    found: dict[str, set[int]] = defaultdict(set)
    for line in index.history.lines:
        if line.event == "AdoptChainNonce":
            for nonce in range(int(line.detail["from"]), int(line.detail["to"])):
                foreign_tx = index.on_chain.get((line.signer, nonce))
                if foreign_tx is not None and foreign_tx.hash not in index.by_hash:
                    found[line.signer].add(nonce)
    for (
        signer,
        nonce,
    ), foreign_tx in index.on_chain.items():  # an operator may have continued after them
        if foreign_tx.hash in index.history.foreign:
            found[signer].add(nonce)
    return found


def _sealed(index: HistoryIndex) -> Found:
    successors = next_terms(index.history)
    for signer, token, xid, what in writes(index.history):
        term = successors.get((signer, token))
        if term is not None and not term.sealed.saw(xid):
            yield f"{what} was written by token {token} after token {term.token} had begun", signer


def _tokens_rise(index: HistoryIndex) -> Found:
    latest: dict[str, int] = {}
    issued: set[tuple[str, int]] = set()
    for term in sorted(index.history.terms, key=lambda term: term.began_s):
        key = (term.signer, term.token)
        if key in issued:
            yield f"token {term.token} was issued twice", term.signer
        elif term.token <= latest.get(term.signer, -1):
            yield f"token {term.token} came after {latest[term.signer]}", term.signer
        issued.add(key)
        latest[term.signer] = max(term.token, latest.get(term.signer, -1))
    for signer, token, _, what in writes(index.history):
        if (signer, token) not in issued:
            yield f"{what} names token {token}, which was never issued", signer


def _acknowledged(index: HistoryIndex) -> Found:
    for ack in index.history.acknowledged:
        tx = index.tx.get(ack.tx_id)
        if tx is None:
            yield f"request {ack.request_id} was acknowledged as {ack.tx_id}, which is gone", ack.signer
        elif (tx.signer, tx.request_id, tx.effect) != (ack.signer, ack.request_id, ack.effect):
            yield f"request {ack.request_id} is not what was acknowledged", ack.signer


def _stored_first(index: HistoryIndex) -> Found:
    for tx, where in index.sent_or_mined():
        if tx.hash not in index.by_hash and tx.hash not in index.history.foreign:
            yield f"{tx.hash} at nonce {tx.nonce} was never stored", f"{tx.signer}, {where}"
    judged: set[str] = set()
    for sent in index.history.sent:  # by time: the first send counts
        if sent.tx.hash in judged or sent.tx.hash not in index.by_hash:
            continue
        judged.add(sent.tx.hash)
        stored_s = index.stored_s.get(sent.tx.hash)
        if stored_s is None:
            yield f"{sent.tx.hash} was sent, but no journal line tells when it was stored", sent.tx.signer
        elif stored_s > sent.at_s:
            early_ms = (stored_s - sent.at_s) * 1000
            yield f"{sent.tx.hash} was sent {early_ms:.1f} ms before it was stored", sent.tx.signer


def _one_intent(index: HistoryIndex) -> Found:
    for tx_id, attempts in index.attempts_of_tx.items():
        tx = index.tx.get(tx_id)
        for attempt in attempts:
            own = f"{attempt.signer} 0 0x"
            wanted = own if attempt.purpose == "filler" or tx is None else tx.effect
            if attempt.effect != wanted:
                yield (
                    f"attempt {attempt.number} of {tx_id} says something else than was asked",
                    attempt.signer,
                )
    for seen, where in index.sent_or_mined():
        stored = index.by_hash.get(seen.hash)
        if stored is not None and (stored.signer, stored.nonce, stored.effect) != (
            seen.signer,
            seen.nonce,
            seen.effect,
        ):
            yield f"{seen.hash} is not what is stored", f"{seen.signer}, {where}"


def _mined_once(index: HistoryIndex) -> Found:
    times: Counter[str] = Counter()
    effects: Counter[tuple[str, str]] = Counter()
    for _, seen in index.mined:
        stored = index.by_hash.get(seen.hash)
        is_filler = stored is not None and stored.purpose == "filler"
        if stored is not None and (not is_filler or index.is_born_filler(stored.tx_id)):
            times[stored.tx_id] += 1
        if not is_filler and seen.hash not in index.history.foreign:
            effects[seen.signer, seen.effect] += 1
    requested = Counter((tx.signer, tx.effect) for tx in index.history.txs)
    for (signer, effect), count in effects.items():
        if count > requested.get((signer, effect), count):
            yield (
                f"{effect!r} was asked for {requested[signer, effect]} times and mined {count} times",
                signer,
            )
    for tx in index.history.txs:
        count = times[tx.tx_id]
        if count > 1:
            yield f"{tx.tx_id} is mined {count} times", tx.signer
        elif count == 0 and tx.state == "CONFIRMED":
            yield f"{tx.tx_id} is CONFIRMED, but no block has it", tx.signer
        elif tx.state in _GIVEN_UP and index.history.all_must_mine and tx.signer not in index.history.victims:
            yield f"{tx.tx_id} is {tx.state}, though nothing was wrong with it", tx.signer


def _confirmed_at_depth(index: HistoryIndex) -> Found:
    required = index.history.required_depth
    for tx in index.history.txs:
        if tx.state not in _TERMINAL or tx.block_number is None:
            continue
        if index.block_hash.get(tx.block_number) != tx.block_hash:
            yield f"{tx.tx_id} is {tx.state} in block {tx.block_number}, which is not canonical", tx.signer
        elif index.head - tx.block_number < required:
            yield f"{tx.tx_id} is {tx.state} at depth {index.head - tx.block_number}", tx.signer
    yield from _forks_are_journaled(index)


def _forks_are_journaled(index: HistoryIndex) -> Found:
    for tx_id, lines in index.lines_of_tx.items():
        block: str | None = None
        for line in lines:
            if line.event == "ReceiveReceipt":
                if block is not None and block != line.detail["blockHash"]:
                    yield f"{tx_id} moved to another block, and the journal has no fork", f"journal {line.id}"
                block = line.detail["blockHash"]
            elif line.event == "Fork" and "was" in line.detail:
                block = None
            elif line.event == "Finish" and int(line.detail["count"]) < index.history.required_depth:
                yield f"{tx_id} ended with {line.detail['count']} blocks on top", f"journal {line.id}"


def _failed_only_when_consumed(index: HistoryIndex) -> Found:
    for tx in index.history.txs:
        ended_badly = tx.state in _GIVEN_UP and tx.nonce is not None
        if ended_badly and (tx.signer, tx.nonce) not in index.on_chain:
            yield f"{tx.tx_id} is {tx.state}, but nonce {tx.nonce} is not consumed", tx.signer


def _legal_and_rising(index: HistoryIndex) -> Found:
    for tx in index.history.txs:
        state, xid = None, -1
        sent_attempt = 0
        for line in index.lines_of_tx[tx.tx_id]:
            is_one_step = (line.xid, line.state) == (
                xid,
                state,
            )  # several lines of one write describe one step
            xid = line.xid
            if is_one_step:
                pass
            elif line.state is not None and state is not None and (state, line.state) not in _LEGAL:
                yield f"{tx.tx_id} went from {state} to {line.state}", f"journal {line.id}"
            first = "ALLOCATED" if index.is_born_filler(tx.tx_id) else "QUEUED"
            if line.state is not None and state is None and line.state != first:
                yield f"{tx.tx_id} began as {line.state}", f"journal {line.id}"
            state = line.state or state
            if line.event == "SendResult":
                if int(line.detail["attempt"]) < sent_attempt:
                    yield f"{tx.tx_id} sent an older attempt after a newer one", f"journal {line.id}"
                sent_attempt = int(line.detail["attempt"])
        if state != tx.state:
            yield f"{tx.tx_id} is {tx.state}, but its journal ends with {state}", tx.signer
    yield from _fees_rise(index)


def _fees_rise(index: HistoryIndex) -> Found:
    for tx_id, attempts in index.attempts_of_tx.items():
        ordered = sorted(attempts, key=lambda attempt: attempt.number)
        if [attempt.number for attempt in ordered] != list(range(1, len(ordered) + 1)):
            yield f"the attempts of {tx_id} are not numbered 1 … {len(ordered)}", ordered[0].signer
        for before, after in pairwise(ordered):
            pays_more = after.fee_cap_wei > before.fee_cap_wei and after.tip_wei >= before.tip_wei
            if not pays_more and not _is_retyped(index, before, after):
                yield f"attempt {after.number} of {tx_id} does not pay more than the one before", after.signer


def _is_retyped(index: HistoryIndex, before: AttemptRow, after: AttemptRow) -> bool:
    """Return whether a type that nodes rejected was signed again as type 0, for the same price or less.

    No pool holds the rejected bytes, so the new ones need not outbid them.
    """
    if before.tx_type == _LEGACY or after.tx_type != _LEGACY or after.fee_cap_wei > before.fee_cap_wei:
        return False
    return any(
        line.event == "Retype" and line.detail.get("hash") == after.hash
        for line in index.lines_of_tx[after.tx_id]
    )


def _protect_holds(index: HistoryIndex) -> Found:
    since: dict[str, JournalLine] = {}
    for line in index.history.lines:
        if line.event == "Protect":
            since.setdefault(line.signer, line)
        elif line.event == "Unprotect":
            since.pop(line.signer, None)
        elif line.signer in since and line.event in _GOES_OUT:
            yield f"{line.event} of {line.tx_id} under PROTECT", f"{line.signer}, journal {line.id}"
    yield from _no_sends_under(since, index.history)
    state = {cursor.signer: cursor.state for cursor in index.history.cursors}
    for signer in since:
        if state.get(signer) != "PROTECT":
            yield "PROTECT was left without an unprotect command", signer
    for signer in index.history.victims:
        if signer not in since:
            yield "its key was used outside Fencepost, and it is not in PROTECT", signer


def _no_sends_under(since: dict[str, JournalLine], history: History) -> Found:
    for sent in history.sent:
        protect = since.get(sent.tx.signer)
        if protect is None or sent.tx.hash in history.foreign:
            continue
        if sent.at_s > protect.committed_s + history.late_send_s:
            yield f"{sent.tx.hash} was sent under PROTECT", sent.tx.signer


def _nothing_after_fenced(index: HistoryIndex) -> Found:
    fenced_s: dict[tuple[str, int], float] = {}
    for note in index.history.fenced:
        fenced_s.setdefault((note.signer, note.token), note.at_s)
    highest: dict[str, int] = {}
    for line in index.history.lines:
        if line.token is None:
            continue
        if line.token < highest.get(line.signer, 0):
            yield f"token {line.token} wrote after token {highest[line.signer]}", f"journal {line.id}"
        highest[line.signer] = max(line.token, highest.get(line.signer, 0))
        if line.committed_s > fenced_s.get((line.signer, line.token), line.committed_s):
            yield f"token {line.token} wrote after it was fenced", f"journal {line.id}"


def _finished(index: HistoryIndex) -> Found:
    victims = index.history.victims
    if index.history.quiet_within_s is None:
        yield "it did not become quiet in time", "the whole run"
    for tx in index.history.txs:
        if tx.state in _LIVE and tx.signer not in victims:
            yield f"{tx.tx_id} is still {tx.state} (nonce {tx.nonce})", tx.signer
    for cursor in index.history.cursors:
        if cursor.state != "ACTIVE" and cursor.signer not in victims:
            yield f"it is {cursor.state}, though its key was not used outside Fencepost", cursor.signer


_RULES: dict[int, Callable[[HistoryIndex], Found]] = {
    1: _one_to_one,
    2: _gapless,
    3: _sealed,
    4: _tokens_rise,
    5: _acknowledged,
    6: _stored_first,
    7: _one_intent,
    8: _mined_once,
    9: _confirmed_at_depth,
    10: _failed_only_when_consumed,
    11: _legal_and_rising,
    12: _protect_holds,
    13: _nothing_after_fenced,
    14: _finished,
}

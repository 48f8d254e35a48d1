"""The history checker: fourteen invariants, each a function that names what breaks it. One pass a rule, O(n).

It believes nobody: the database is compared with the chain, the journal with the rows, what was sent with what was
stored, what was acknowledged with what is there. `check` wants a quiet system: live transactions are violations then.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from fencepost.domain.states import LIVE, TERMINAL, TRANSITIONS
from fencepost.lab.history import History, Line
from fencepost.lab.history_index import Index, next_terms, writes

INVARIANTS: dict[int, str] = {
    1: "a nonce and a request belong to each other, one to one, ever",
    2: "a signer's nonces are exactly start … next - 1",
    3: "a term that was sealed by the next one has made no write since",
    4: "tokens rise and are never issued twice",
    5: "what was acknowledged is there, unchanged",
    6: "what the chain saw was stored before it was sent",
    7: "one intent a nonce: in the database, in the pool, on the chain",
    8: "each request is mined once",
    9: "CONFIRMED means a canonical block at depth, and forks are told",
    10: "nothing has failed while its nonce is free",
    11: "states follow the table; attempts and fees only rise",
    12: "PROTECT stays, and nothing goes out under it",
    13: "no write from a term after it was fenced",
    14: "when the faults stop, everything finishes",
}

_LEGAL = {(old.value, new.value) for old, new in TRANSITIONS}
_LIVE = {state.value for state in LIVE}
_TERMINAL = {state.value for state in TERMINAL}
_GIVEN_UP = frozenset({"FAILED", "CANCELLED"})
_GOES_OUT = frozenset({"AssignNonce", "SubmitTransaction", "Resubmit", "SendResult", "Bump", "Fill", "Sign"})


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: int
    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.what} ({self.where})"


Found = Iterator[tuple[str, str]]


def check(history: History) -> list[Violation]:
    index = Index(history)
    return [Violation(number, what, where) for number, rule in _RULES.items() for what, where in rule(index)]


def _one_to_one(index: Index) -> Found:
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


def _gapless(index: Index) -> Found:
    held: dict[str, set[int]] = defaultdict(set)
    for tx in index.history.txs:
        if tx.nonce is not None:
            held[tx.signer].add(tx.nonce)
    ranges = {cursor.signer: range(cursor.start_nonce, cursor.next_nonce) for cursor in index.history.cursors}
    strangers = _strangers_nonces(index)
    for signer in ranges.keys() | held.keys():
        wanted = ranges.get(signer, range(0))
        for nonce in sorted(set(wanted) - held[signer] - strangers[signer]):
            yield f"nonce {nonce} belongs to nobody", signer
        for nonce in sorted(held[signer] - set(wanted)):
            yield f"nonce {nonce} lies outside {wanted.start} … {wanted.stop - 1}", signer


def _strangers_nonces(index: Index) -> dict[str, set[int]]:
    """Nonces that were stepped over because the chain had them, and has them still."""
    found: dict[str, set[int]] = defaultdict(set)
    for line in index.history.lines:
        if line.event == "AdoptChainNonce":
            for nonce in range(int(line.detail["from"]), int(line.detail["to"])):
                theirs = index.on_chain.get((line.signer, nonce))
                if theirs is not None and theirs.hash not in index.by_hash:
                    found[line.signer].add(nonce)
    for (signer, nonce), theirs in index.on_chain.items():  # a person may have decided to go on behind them
        if theirs.hash in index.history.strangers:
            found[signer].add(nonce)
    return found


def _sealed(index: Index) -> Found:
    following = next_terms(index.history)
    for signer, token, xid, what in writes(index.history):
        term = following.get((signer, token))
        if term is not None and not term.sealed.saw(xid):
            yield f"{what} was written by token {token} after token {term.token} had begun", signer


def _tokens_rise(index: Index) -> Found:
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


def _acknowledged(index: Index) -> Found:
    for told in index.history.acknowledged:
        tx = index.tx.get(told.tx_id)
        if tx is None:
            yield f"request {told.request_id} was acknowledged as {told.tx_id}, which is gone", told.signer
        elif (tx.signer, tx.request_id, tx.effect) != (told.signer, told.request_id, told.effect):
            yield f"request {told.request_id} is not what was acknowledged", told.signer


def _stored_first(index: Index) -> Found:
    for tx, where in index.seen_outside():
        if tx.hash not in index.by_hash and tx.hash not in index.history.strangers:
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


def _one_intent(index: Index) -> Found:
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
    for seen, where in index.seen_outside():
        stored = index.by_hash.get(seen.hash)
        if stored is not None and (stored.signer, stored.nonce, stored.effect) != (
            seen.signer,
            seen.nonce,
            seen.effect,
        ):
            yield f"{seen.hash} is not what is stored", f"{seen.signer}, {where}"


def _mined_once(index: Index) -> Found:
    times: Counter[str] = Counter()
    effects: Counter[tuple[str, str]] = Counter()
    for _, seen in index.mined:
        stored = index.by_hash.get(seen.hash)
        is_filler = stored is not None and stored.purpose == "filler"
        if stored is not None and (not is_filler or index.is_born_filler(stored.tx_id)):
            times[stored.tx_id] += 1
        if not is_filler and seen.hash not in index.history.strangers:
            effects[seen.signer, seen.effect] += 1
    wished = Counter((tx.signer, tx.effect) for tx in index.history.txs)
    for (signer, effect), count in effects.items():
        if count > wished.get((signer, effect), count):
            yield f"{effect!r} was asked for {wished[signer, effect]} times and mined {count} times", signer
    for tx in index.history.txs:
        count = times[tx.tx_id]
        if count > 1:
            yield f"{tx.tx_id} is mined {count} times", tx.signer
        elif count == 0 and tx.state == "CONFIRMED":
            yield f"{tx.tx_id} is CONFIRMED, but no block has it", tx.signer
        elif tx.state in _GIVEN_UP and index.history.all_must_mine and tx.signer not in index.history.victims:
            yield f"{tx.tx_id} is {tx.state}, though nothing was wrong with it", tx.signer


def _confirmed_at_depth(index: Index) -> Found:
    required = index.history.required_depth
    for tx in index.history.txs:
        if tx.state not in _TERMINAL or tx.block_number is None:
            continue
        if index.block_hash.get(tx.block_number) != tx.block_hash:
            yield f"{tx.tx_id} is {tx.state} in block {tx.block_number}, which is not canonical", tx.signer
        elif index.head - tx.block_number < required:
            yield f"{tx.tx_id} is {tx.state} at depth {index.head - tx.block_number}", tx.signer
    yield from _forks_are_told(index)


def _forks_are_told(index: Index) -> Found:
    for tx_id, lines in index.lines_of_tx.items():
        block: str | None = None
        for line in lines:
            if line.event == "ReceiveReceipt":
                if block is not None and block != line.detail["blockHash"]:
                    yield f"{tx_id} moved to another block, and no fork was told", f"journal {line.id}"
                block = line.detail["blockHash"]
            elif line.event == "Fork" and "was" in line.detail:
                block = None
            elif line.event == "Finish" and int(line.detail["count"]) < index.history.required_depth:
                yield f"{tx_id} ended with {line.detail['count']} blocks on top", f"journal {line.id}"


def _failed_only_when_consumed(index: Index) -> Found:
    for tx in index.history.txs:
        ended_badly = tx.state in _GIVEN_UP and tx.nonce is not None
        if ended_badly and (tx.signer, tx.nonce) not in index.on_chain:
            yield f"{tx.tx_id} is {tx.state}, but nonce {tx.nonce} is not consumed", tx.signer


def _legal_and_rising(index: Index) -> Found:
    for tx in index.history.txs:
        state, xid = None, -1
        sent_attempt = 0
        for line in index.lines_of_tx[tx.tx_id]:
            is_one_step = (line.xid, line.state) == (xid, state)  # several lines of one write tell one step
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


def _fees_rise(index: Index) -> Found:
    for tx_id, attempts in index.attempts_of_tx.items():
        ordered = sorted(attempts, key=lambda attempt: attempt.number)
        if [attempt.number for attempt in ordered] != list(range(1, len(ordered) + 1)):
            yield f"the attempts of {tx_id} are not numbered 1 … {len(ordered)}", ordered[0].signer
        for before, after in pairwise(ordered):
            if after.fee_cap_wei <= before.fee_cap_wei or after.tip_wei < before.tip_wei:
                yield f"attempt {after.number} of {tx_id} does not pay more than the one before", after.signer


def _protect_holds(index: Index) -> Found:
    since: dict[str, Line] = {}
    for line in index.history.lines:
        if line.event == "Protect":
            since.setdefault(line.signer, line)
        elif line.event == "Unprotect":
            since.pop(line.signer, None)
        elif line.signer in since and line.event in _GOES_OUT:
            yield f"{line.event} of {line.tx_id} under PROTECT", f"{line.signer}, journal {line.id}"
    yield from _silent_under(since, index.history)
    state = {cursor.signer: cursor.state for cursor in index.history.cursors}
    for signer in since:
        if state.get(signer) != "PROTECT":
            yield "PROTECT was left, and nobody asked for it", signer
    for signer in index.history.victims:
        if signer not in since:
            yield "a stranger used its key, and it is not in PROTECT", signer


def _silent_under(since: dict[str, Line], history: History) -> Found:
    for sent in history.sent:
        protect = since.get(sent.tx.signer)
        if protect is None or sent.tx.hash in history.strangers:
            continue
        if sent.at_s > protect.committed_s + history.late_send_s:
            yield f"{sent.tx.hash} was sent under PROTECT", sent.tx.signer


def _nothing_after_fenced(index: Index) -> Found:
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


def _finished(index: Index) -> Found:
    victims = index.history.victims
    if index.history.quiet_within_s is None:
        yield "it did not become quiet in time", "the whole run"
    for tx in index.history.txs:
        if tx.state in _LIVE and tx.signer not in victims:
            yield f"{tx.tx_id} is still {tx.state} (nonce {tx.nonce})", tx.signer
    for cursor in index.history.cursors:
        if cursor.state != "ACTIVE" and cursor.signer not in victims:
            yield f"it is {cursor.state}, though nobody else used its key", cursor.signer


_RULES: dict[int, Callable[[Index], Found]] = {
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

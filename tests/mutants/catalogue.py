"""All mutants: ways to lose or repeat a nonce that were seen in practice, and others.

Each changes one function of the program, or one rule of the in-memory database. Those that need SQL are in
`integration/test_unsafe_patterns.py`; here are the flaws of lanes, nodes and leases.
"""

from __future__ import annotations

from mutants import chain_flaws, database_flaws, lease_flaws, send_flaws
from mutants.planting import Mutant

MUTANTS = [
    Mutant(
        "the write looks at the lease, and commits later",
        database_flaws.exists_then_write,
        "owners sleep before a write",
        is_of_part_one=True,
    ),
    Mutant(
        "the write does not name its token",
        database_flaws.no_fence,
        "owners sleep before a write",
        is_of_part_one=True,
    ),
    Mutant(
        "a client's clock says that a lease has ended",
        database_flaws.own_clock_takes,
        "clocks jump",
        is_of_part_one=True,
    ),
    Mutant(
        "a client's clock says until when a lease is renewed", database_flaws.own_clock_renews, "clocks jump"
    ),
    Mutant(
        "the same name keeps its token over a restart",
        database_flaws.name_keeps_its_token,
        "owners of one name sleep",
        is_of_part_one=True,
    ),
    Mutant(
        "lease rows are deleted", database_flaws.lease_rows_deleted, "leases come and go", is_of_part_one=True
    ),
    Mutant(
        "the nonce in one commit, the row in another",
        database_flaws.nonce_first_row_later,
        "owners are killed often",
        is_of_part_one=True,
    ),
    Mutant("no request key", database_flaws.no_request_key, "callers ask again", is_of_part_one=True),
    Mutant(
        "broadcast, then persist", send_flaws.send_before_commit, "nothing goes wrong", is_of_part_one=True
    ),
    Mutant(
        "nonce too low, so a fresh nonce",
        send_flaws.fresh_nonce_when_too_low,
        "answers of sends get lost",
        is_of_part_one=True,
    ),
    Mutant(
        "unknown hash, so a new nonce", send_flaws.unknown_hash_new_nonce, "pools forget", is_of_part_one=True
    ),
    Mutant(
        "the send failed, so the nonce is released",
        send_flaws.release_on_unknown,
        "answers of sends get lost",
        is_of_part_one=True,
    ),
    Mutant(
        "allocation without compare and swap, and a lost answer is a no",
        database_flaws.lost_answer_is_no,
        "answers of writes get lost",
        is_of_part_one=True,
    ),
    Mutant("a renewal that names no token", database_flaws.renews_anybody, "owners sleep before a renewal"),
    Mutant("a lease is trusted for ever", lease_flaws.trusts_for_ever, "renewals fail"),
    Mutant("a fenced term goes on", lease_flaws.goes_on_after_fenced, "owners sleep before a write"),
    Mutant(
        "the node says which nonce is next, and no key refuses it",
        send_flaws.node_says_the_nonce,
        "nonces lag",
    ),
    Mutant("a bump is sent, but not stored", send_flaws.bump_not_stored, "no blocks for long"),
    Mutant("a bump that does not pay more", send_flaws.same_price_again, "no blocks for long"),
    Mutant("a time-out is a failure", send_flaws.time_out_is_failure, "answers of sends get lost"),
    Mutant("FAILED before the nonce is consumed", send_flaws.failed_at_once, "nodes refuse for good"),
    Mutant("nothing is sent again", send_flaws.never_again, "pools forget"),
    Mutant("sent again without a claim", send_flaws.no_claim, "pools forget"),
    Mutant("only the latest attempt is looked up", chain_flaws.latest_attempt_only, "bumps do not arrive"),
    Mutant("forks are ignored", chain_flaws.ignores_forks, "short forks"),
    Mutant("CONFIRMED with the first block", chain_flaws.no_depth, "nothing goes wrong, strictly"),
    Mutant("what has ended is never looked at again", chain_flaws.ended_is_ended, "deep forks"),
    Mutant(
        "a foreign transaction at our nonce is overlooked",
        chain_flaws.strangers_overlooked,
        "a foreign transaction waits in the pool",
    ),
    Mutant("PROTECT that sends", chain_flaws.protect_sends, "people protect"),
    Mutant("a take-over that knows the cursor only", lease_flaws.no_reconcile, "owners die after a write"),
    Mutant("a nonce that lives in memory only", send_flaws.persist_skipped, "nothing goes wrong"),
    Mutant("a nonce is stepped over", send_flaws.nonce_skipped, "hints get lost"),
    Mutant(
        "one node's word moves the sequence", send_flaws.adopted_at_first_sight, "one node lies for a moment"
    ),
    Mutant(
        "a chain nonce above ours is adopted without finding out who consumed it",
        send_flaws.adopted_without_attribution,
        "an older copy takes the database's place",
        is_of_part_one=True,
    ),
    Mutant(
        "what a restored copy has attached ends the doubt",
        send_flaws.attached_and_trusted,
        "an older snapshot takes the database's place, and pools forget",
    ),
    Mutant(
        "nonces are given though the database lost commits",
        send_flaws.history_trusted,
        "a pool forgets some of what the database lost",
    ),
    Mutant(
        "a chain that shows nothing above our cursor ends the doubt",
        send_flaws.doubt_without_fillers,
        "a pool forgets some of what the database lost",
    ),
    Mutant(
        "one filler for all that the database lost",
        send_flaws.one_filler,
        "a pool forgets most of what the database lost",
    ),
    Mutant(
        "a request beside fillers that may lose",
        send_flaws.fillers_not_waited_for,
        "the database loses a signer's beginning, and nonces lag",
    ),
    Mutant(
        "a signer that was forgotten is a new one",
        database_flaws.forgotten_signers_are_new,
        "the database loses a signer's beginning, and a pool forgets some of it",
    ),
    Mutant(
        "a doubt that lives in memory only",
        database_flaws.doubt_in_memory,
        "a pool forgets, people write the cursor, and owners die",
    ),
    Mutant(
        "a database that lost commits gives a token again",
        database_flaws.token_without_its_timeline,
        "a pool forgets some of what the database lost",
    ),
    Mutant(
        "a lease is taken before its end",
        database_flaws.taken_before_its_end,
        "owners sleep before a renewal",
    ),
    Mutant("a bump overwrites what was sent before", database_flaws.bump_overwrites, "bumps do not arrive"),
    Mutant(
        "an end that the journal does not tell", database_flaws.no_journal, "nothing goes wrong, strictly"
    ),
    Mutant("cancelled while its nonce is free", send_flaws.cancelled_at_once, "people cancel"),
    Mutant("a function's nonce is never filled", send_flaws.handlers_nonce_left, "owners of functions die"),
    Mutant("new bytes after an alarm", send_flaws.alarm_after_all_else, "refusals come with an alarm"),
    Mutant(
        "a take-over does not look back",
        chain_flaws.take_over_does_not_look_back,
        "a fork below a full window, while no node runs",
    ),
    Mutant(
        "a block beyond the view stands", chain_flaws.beyond_the_view_stands, "views that are behind a fork"
    ),
    Mutant(
        "a start that does not look back", chain_flaws.start_does_not_look_back, "a fork while no node runs"
    ),
    Mutant("an endpoint may serve any chain", chain_flaws.any_chain_will_do, "endpoints serve another chain"),
    Mutant("a take-over forgets PROTECT", lease_flaws.protect_forgotten, "people protect, and owners die"),
    Mutant("a hint that is lost is never made up for", lease_flaws.only_hints, "hints get lost"),
    Mutant(
        "a lane is given a request past those that wait",
        database_flaws.handed_over_out_of_turn,
        "a hint gets lost now and then",
    ),
]

"""Every statement that writes declares its fence and has it.

The named queries are the only SQL of the product, so they contain everything that it can do to a database.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path

import pytest

import fencepost
from fencepost.adapters.postgres import migrate
from fencepost.adapters.postgres.queries import Query, compose, load_all, parse
from fencepost.adapters.postgres.sources import COMMIT_SOURCES, numbered_arrays

PACKAGE = Path(fencepost.__file__).parent
ROOT = Path(__file__).parents[2]

# Statements that may write without a term, and their tables; the reasons are next to the statements.
UNFENCED = {
    "accept_requests": {"managed_tx", "journal_batch", "signer_use"},
    "command_insert": {"lane_command"},
    "command_insert_audited": {"lane_command", "audit"},
    # The chain of this database: the first writer decides, and the row never changes.
    "chain_genesis": {"chain_identity"},
    # Only removes what is older than the retention, and records how far.
    "events_prune": {"event_floor"},
    "history_begins": {"database_history"},
    "key_insert": {"api_key", "audit"},
    "key_revoke": {"api_key", "audit"},
    "lease_acquire": {"signer_lease"},
    "lease_forget_terms": set(),
    "lease_insert_missing": {"signer_lease"},
    "lease_record_terms": {"lease_term"},
    # Stable blocks: the expected block decides which node writes.
    "stable_chain_move": {"stable_chain", "journal_batch"},
    # Live nodes: they only decide the order of preferred owners.
    "node_beat": {"fencepost_node", "journal_batch"},
    "node_join": {"fencepost_node", "journal_batch"},
    "node_leave": {"fencepost_node", "journal_batch"},
    "nodes_forget": {"fencepost_node"},
    # The nonce service never writes to the core's tables: its own keys, holds and nonce blocks keep order.
    "nonce_block_flush": {"nonce_block", "nonce_slot"},
    "nonce_block_give_back": {"nonce_block", "nonce_slot"},
    "nonce_block_retire_dead": {"nonce_block"},
    "nonce_block_take": {"nonce_block", "nonce_cursor"},
    "nonce_cursor_open": {"nonce_cursor"},
    "nonce_heal": {"nonce_slot"},
    "nonce_mark": {"nonce_slot"},
    "nonce_occupy": {"nonce_slot"},
    "nonce_reclaim": {"nonce_cursor", "nonce_slot"},
    "nonce_redis_off": {"nonce_cursor"},
    "nonce_register": {"signer_use"},
    "nonce_take": {"nonce_cursor", "nonce_slot"},
    "nonce_take_gaps": {"nonce_slot"},
    "nonce_write_behind": {"nonce_slot"},
    # Spending policies and daily budgets: no part of the nonce sequences.
    "policy_put": {"signer_policy", "audit"},
    "policy_remove": {"signer_policy", "audit"},
    "spend_reserve": {"signer_spend", "tx_spend"},
    "spend_settle": {"signer_spend", "tx_spend"},
    # What the owner of a subscription decides, and records that nothing depends on; checkpoints are fenced below.
    "subscription_acquire": {"subscription_lease"},
    "subscription_acquire_one": {"subscription_lease"},
    "subscription_delete": {"audit"},
    "subscription_forget_attempts": set(),
    "subscription_insert": {"subscription", "subscription_lease", "audit"},
    "subscription_pause": {"subscription", "subscription_lease"},
    "subscription_prune": set(),
    "subscription_record_attempt": {"webhook_attempt"},
    "subscription_redeliver": {"subscription", "webhook_delivery"},
    "subscription_redeliver_failed": {"subscription", "webhook_delivery"},
    "subscription_resume": {"subscription", "subscription_lease"},
    "subscription_rotate": {"subscription", "audit"},
}
# Database functions that write without a term; the statement of the same name calls each.
UNFENCED_FUNCTIONS = {"spend_reserve", "spend_settle"}
FENCED = {
    "commit_lanes",
    "lease_release",
    "lease_renew",
    "nonce_take_leased",
    "subscription_advance",
    "subscription_disable",
    "subscription_release",
    "subscription_renew",
    "subscription_settle",
}

# SQL in Python: migrations, the session's own set-up and notifications.
WRITES_SQL = {Path("adapters/postgres") / name for name in ("migrate.py", "database.py", "notifier.py")}

# The benchmark compares with bare SQL on tables of its own, and fills ours with old rows before a node begins.
BARE_SQL = Path("lab/bench")

# These read the database from outside, to check it, and never change it.
READS_SQL = {Path("cli/doctor.py"), Path("cli/demo_run.py"), Path("lab")}

_MUTATION = re.compile(
    r"\bINSERT\s+INTO\b|(?<!FOR )(?<!DO )(?<!KEY )\bUPDATE\b|\bDELETE\s+FROM\b|\bMERGE\b|\bTRUNCATE\b"
)
_OPENS_CTE = re.compile(r"\b([a-z_]+) AS (?:MATERIALIZED )?\($")
_SQL_IN_PYTHON = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|TRUNCATE|MERGE)\s")


def bare(sql: str) -> str:
    """Remove comments and literals; leave one space between words."""
    return " ".join(re.sub(r"--[^\n]*|'[^']*'", " ", sql).split())


def mutations(sql: str) -> list[str]:
    return _MUTATION.findall(bare(sql))


def parts(sql: str) -> dict[str, str]:
    """Return the common table expressions by name; the final statement has the name ''."""
    text = bare(sql)
    found: dict[str, str] = {}
    rest, at = "", 0
    while at < len(text):
        opens = _OPENS_CTE.search(text[: at + 1]) if text[at] == "(" else None
        if opens is None:
            rest += text[at]
            at += 1
            continue
        end = closing(text, at)
        found[opens[1]] = text[at + 1 : end]
        at = end + 1
    return {**found, "": rest}


def closing(text: str, opening: int) -> int:
    depth = 0
    for at in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    raise ValueError("a parenthesis is not closed")


def reaches(name: str, goal: str, of: dict[str, str]) -> bool:
    """Tell whether a part reads, over any number of steps, from the part that holds the lock."""
    seen: set[str] = set()
    to_do = [name]
    while to_do:
        at = to_do.pop()
        if at == goal:
            return True
        if at not in seen:
            seen.add(at)
            to_do += [other for other in of if other and re.search(rf"\b(?:FROM|JOIN) {other}\b", of[at])]
    return False


def changes_own_lease(body: str) -> bool:
    """Tell whether a part changes the lease row with its token, and not the token: it locks the row like FOR NO KEY UPDATE."""
    own_row = re.search(
        r"\bUPDATE (?:signer|subscription)_lease s\b.*\bWHERE\b.*\bs\.fencing_token = w\.token\b", body
    )
    return bool(own_row) and not re.search(r"\bSET\b.*\bfencing_token =.*\bFROM\b", body)


def is_fenced(sql: str) -> bool:
    """Tell whether each mutation depends on the lease row with the token, or changes only that lease row."""
    of = parts(sql)
    locks = [
        name
        for name, body in of.items()
        if (
            name
            and re.search(r"\bFOR KEY SHARE\b", body)
            and re.search(r"\bs\.fencing_token = \w+\.token\b", body)
        )
        or (name and changes_own_lease(body))
    ]
    for name, body in of.items():
        if not _MUTATION.search(body) or changes_own_lease(body):
            continue
        if not any(reaches(name, lock, of) for lock in locks):
            return False
    return True


def functions_that_write() -> dict[str, str]:
    """Return the database functions that write, by name: a statement that calls one writes, too."""
    found: dict[str, str] = {}
    for migration in migrate.available():
        made = re.findall(r"\bCREATE FUNCTION ([a-z_]+)\(.*?\$\$(.*?)\$\$", migration.sql, re.DOTALL)
        found |= {name: bare(body) for name, body in made if mutations(body)}
    return found


def calls(query: Query, functions: Iterable[str]) -> bool:
    return any(re.search(rf"\b{name}\(", query.sql) for name in functions)


def mutating() -> list[Query]:
    functions = functions_that_write()
    return [query for query in load_all().values() if mutations(query.sql) or calls(query, functions)]


def test_no_function_writes_what_needs_a_term() -> None:
    assert functions_that_write().keys() == UNFENCED_FUNCTIONS


@pytest.mark.parametrize("name", sorted(UNFENCED_FUNCTIONS))
def test_unfenced_writes_in_functions_are_limited_to_their_tables(name: str) -> None:
    body = functions_that_write()[name]
    written = re.findall(r"\b(?:INSERT INTO|DELETE FROM|(?<!DO )(?<!FOR )UPDATE) ([a-z_]+)", body)
    assert set(written) == UNFENCED[name]


def test_the_list_of_writing_statements_is_complete() -> None:
    """A new statement must be added here, and reviewed."""
    assert {query.name for query in mutating()} == UNFENCED.keys() | FENCED


@pytest.mark.parametrize("name", UNFENCED)
def test_unfenced_statements_write_only_to_their_tables(name: str) -> None:
    text = bare(load_all()[name].sql)
    assert set(re.findall(r"\b(?:INSERT INTO|(?<!DO )UPDATE) ([a-z_]+)", text)) - {"of"} <= UNFENCED[name]
    if name != "lease_acquire":
        assert not re.search(
            r"(?<!FOR )\bUPDATE (?:managed_tx|signer_nonce_cursor|tx_attempt|signer_lease)\b", text
        )


@pytest.mark.parametrize("query", mutating(), ids=lambda query: query.name)
def test_every_writing_statement_declares_its_fence(query: Query) -> None:
    assert query.fencing, f"{query.name} needs `-- fenced: …` or `-- unfenced: why`"
    kind, _, why = query.fencing.partition(": ")
    assert len(why) > 10, f"{query.name} gives no reason"
    assert (kind == "unfenced") == (query.name in UNFENCED), f"{query.name} is {kind}"


@pytest.mark.parametrize("query", mutating(), ids=lambda query: query.name)
def test_every_statement_declared_fenced_is_fenced(query: Query) -> None:
    if query.name not in UNFENCED:
        assert is_fenced(query.sql), f"{query.name} writes something that does not hang on its token"


OPTIONAL = ("new_cursors", "cursors", "txs", "fillers", "new_attempts", "journaled", "commands")


@pytest.mark.parametrize("left_out", [*combinations(OPTIONAL, 1), *combinations(OPTIONAL, 7)])
def test_the_fenced_write_without_optional_parts_is_fenced(left_out: tuple[str, ...]) -> None:
    parts = load_all()["commit_lanes"].parts.keys() - set(left_out)
    statement = compose("commit_lanes", numbered_arrays(COMMIT_SOURCES), parts)
    assert is_fenced(statement)
    assert len(mutations(statement)) == len(OPTIONAL) - len(left_out)


def test_only_the_pruning_of_old_rows_and_subscriptions_delete() -> None:
    deleting = {
        query.name: bare(query.sql)
        for query in load_all().values()
        if re.search(r"\bDELETE|TRUNCATE\b", bare(query.sql))
    }
    assert deleting.keys() == {
        "events_prune",
        "lease_forget_terms",
        "nodes_forget",
        "subscription_delete",
        "subscription_forget_attempts",
        "subscription_prune",
        "subscription_settle",
    }
    for name in ("subscription_forget_attempts", "subscription_prune", "subscription_settle"):
        assert set(re.findall(r"\bDELETE FROM ([a-z_]+)", deleting[name])) <= {
            "webhook_attempt",
            "webhook_delivery",
        }
    assert "DELETE FROM journal_batch s USING old o" in deleting["events_prune"]
    assert deleting["lease_forget_terms"].startswith("DELETE FROM lease_term t USING ")
    assert deleting["nodes_forget"].startswith("DELETE FROM fencepost_node WHERE expires_at < ")


def test_no_statement_uses_the_start_of_a_transaction_or_a_clients_clock() -> None:
    late = re.compile(r"\bnow\(\)|\bCURRENT_TIMESTAMP\b|\btransaction_timestamp\b|::timestamp", re.IGNORECASE)
    assert not [
        query.name for query in [*mutating(), load_all()["lease_owner"]] if late.search(bare(query.sql))
    ]


# ---- the checks can fail

LOCK = "WITH held AS (SELECT 1 FROM signer_lease s JOIN l ON s.fencing_token = l.token FOR KEY SHARE OF s)"


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE managed_tx SET state = 'x'",
        f"{LOCK} UPDATE managed_tx SET state = 'x'",
        f"{LOCK}, a AS (UPDATE managed_tx SET x = 1 FROM held), b AS (INSERT INTO journal SELECT 1) SELECT 1 FROM held",
        "WITH held AS (SELECT 1 FROM signer_lease s FOR KEY SHARE) UPDATE managed_tx SET x = 1 FROM held",
        "UPDATE signer_lease s SET fencing_token = w.token + 1 FROM w WHERE s.fencing_token = w.token",
        "UPDATE signer_lease s SET expires_at = 'infinity' FROM w WHERE s.signer = w.signer",
    ],
)
def test_the_check_finds_an_unfenced_write(sql: str) -> None:
    assert mutations(sql)
    assert not is_fenced(sql)


def test_a_lock_or_a_read_is_no_write() -> None:
    assert not mutations("SELECT 1 FROM signer_lease FOR UPDATE -- UPDATE it later\n")
    assert not mutations("SELECT 'UPDATE managed_tx' FROM signer_lease FOR NO KEY UPDATE")
    assert len(mutations("INSERT INTO a VALUES (1) ON CONFLICT (x) DO UPDATE SET x = 1")) == 1


def test_a_query_without_a_declaration_has_no_fence() -> None:
    (query,) = parse("-- name: some_write\n-- Writes.\nUPDATE managed_tx SET state = 'x'\n")
    assert query.fencing is None


# ---- SQL is in .sql files


def sql_texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if _SQL_IN_PYTHON.match(text):
                yield text


def sources() -> list[Path]:
    """Return the product's modules relative to the package, and the lab's relative to the repository."""
    product = [path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py"))]
    return product + [path.relative_to(ROOT) for path in sorted((ROOT / "lab").rglob("*.py"))]


def test_the_scan_finds_sql_in_python() -> None:
    found = list(sql_texts(ast.parse('run("SELECT 1"); run(f"UPDATE {name} SET x"); """With care."""')))
    assert found == ["SELECT 1", "UPDATE "]


@pytest.mark.parametrize("path", sources(), ids=str)
def test_python_contains_no_sql(path: Path) -> None:
    if path in WRITES_SQL or BARE_SQL in path.parents:
        return
    texts = list(
        sql_texts(ast.parse(((ROOT if path.parts[0] == "lab" else PACKAGE) / path).read_text(), str(path)))
    )
    if READS_SQL & {path, *path.parents}:
        texts = [text for text in texts if mutations(text)]
    assert not texts, "SQL belongs into adapters/postgres/sql, with a name"


def test_one_statement_applies_changes() -> None:
    files = [*(PACKAGE / "adapters/postgres").rglob("*.sql")]
    assert [file.name for file in files if "UPDATE managed_tx t" in file.read_text()] == ["commit.sql"]


def test_parameters_of_the_fenced_write_are_generated() -> None:
    assert not re.search(r"\$\d", (PACKAGE / "adapters/postgres/sql/commit.sql").read_text())

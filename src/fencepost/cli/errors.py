"""Implement `fencepost errors …`: show how an error text of an endpoint is understood."""

from __future__ import annotations

from pathlib import Path

import click
from rich.text import Text

from fencepost.adapters.evm.node_errors import classify, matching_row
from fencepost.bootstrap.chains import error_rows_of
from fencepost.cli.node_client import print_json
from fencepost.cli.rendering import console
from fencepost.domain.send_policy import Action, decide
from fencepost.domain.send_result import POSSIBLY_SENT, SendCategory
from fencepost.settings import load

_SHIPPED = "shipped table"
_NO_RULE = "none: the text is unknown"

_DONE = {
    Action.TRACK: "wait for the receipt: the endpoint has the transaction",
    Action.FETCH_RECEIPTS: "fetch the receipts of all attempts at this nonce: it may be mined",
    Action.SEND_LOWER_FIRST: "keep the nonce, send the lower nonces first, assign no more nonces meanwhile",
    Action.OUTBID: "sign again at a price that replaces the earlier attempt in the pool",
    Action.PROTECT: "stop the signer (PROTECT): another program uses its key",
    Action.REQUOTE: "sign again at a new price if fees.bump.enabled is on; else mark it BELOW_MARKET and send the same bytes",
    Action.RETYPE: "sign again as type 0, with the same nonce",
    Action.SEND_AGAIN: "wait, then send the same bytes again",
    Action.SHRINK_WINDOW: "keep one transaction of this signer in flight",
    Action.WAIT_FOR_FUNDS: "keep the nonce and continue when the balance suffices",
    Action.FILL: "fail the request and use its nonce for a filler",
}


@click.group()
def errors() -> None:
    """Show how error texts of endpoints are understood."""


@errors.command()
@click.argument("text")
@click.option("--code", type=int, help="The code of the JSON-RPC error.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Read this file instead of fencepost.toml.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def test(*, text: str, code: int | None, config: Path | None, as_json: bool) -> None:
    """Show the category of an error text, the rule that matched, and what the lane does then."""
    settings = load(toml_path=config).settings
    extra = error_rows_of(settings)
    row, result = matching_row(text, extra), classify(text, rpc_code=code, extra=extra)
    source = settings.errors.file if row in extra else _SHIPPED
    found: dict[str, object] = {
        "category": result.category.value,
        "rule": None if row is None else row[1].pattern,
        "source": None if row is None else source,
        "possiblySent": result.category in POSSIBLY_SENT,
        "chainNonce": result.chain_nonce,
        **_actions(result.category),
    }
    if as_json:
        print_json(found)
        return
    lines = {
        "category": result.category.value,
        "rule": _NO_RULE if row is None else f"{row[1].pattern} ({source})",
        "sent": "possibly" if found["possiblySent"] else "no: the endpoint rejected it",
        "action": found["action"],
    }
    if found["filler"] != found["action"]:
        lines["filler"] = found["filler"]
    if found["replacement"] != found["action"]:
        lines["replaced"] = found["replacement"]
    if result.chain_nonce is not None:
        lines["nonce"] = f"{result.chain_nonce} on the chain"
    out = console()
    for name, value in lines.items():
        out.print(Text.assemble((f"{name:<10}", "bold"), str(value)), soft_wrap=True)


def _actions(category: SendCategory) -> dict[str, str]:
    """Return what is done for a first attempt, for a replacement of an own attempt, and for a filler."""
    return {
        "action": _DONE[decide(category, attempts_at_nonce=1, is_filler=False)],
        "replacement": _DONE[decide(category, attempts_at_nonce=2, is_filler=False)],
        "filler": _DONE[decide(category, attempts_at_nonce=2, is_filler=True)],
    }

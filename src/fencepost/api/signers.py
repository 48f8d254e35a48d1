"""Read signers: from the database, and in detail with balance and nonces from the chain."""

from __future__ import annotations

import asyncio
import re

from msgspec import UNSET

from fencepost.api.context import RequestContext, Response
from fencepost.api.presenters import signer_out
from fencepost.api.problems import ApiError
from fencepost.application.queries import SignerView
from fencepost.domain.ids import Address, Signer
from fencepost.errors import RpcError
from fencepost.schemas.responses import ChainNonces, SignerOut, SignersPage

CHAIN_TIMEOUT_S = 5.0


def describe(call: RequestContext, view: SignerView) -> SignerOut:
    rules = call.services.signers.settings(view.signer.address)
    return signer_out(
        view,
        mode=rules.mode,
        max_in_flight=rules.max_in_flight,
        has_key=view.signer.address in call.services.signers.addresses(),
        shows_nonce=call.shows_nonce,
    )


async def existing(call: RequestContext) -> SignerView:
    """Return the signer of the path.

    Raises `signer_not_found` if it has neither a key here nor a history, or if the caller may not see it.
    """
    signer = call.signer(call.path_text("address"), call.query.chain_id, "address")
    if not call.caller.may_use(signer.address):
        raise _not_found(signer)
    view = await call.services.reader.signer(signer)
    if (
        view.lease is None
        and view.next_nonce is None
        and signer.address not in call.services.signers.addresses()
    ):
        raise _not_found(signer)
    return view


def _not_found(signer: Signer) -> ApiError:
    return ApiError(
        "signer_not_found",
        f"{signer.address} has no key here and no transactions on chain {signer.chain_id}",
        field="address",
    )


async def page(call: RequestContext) -> Response:
    known = [
        Signer(chain_id, address)
        for chain_id in call.services.chains.by_id
        for address in call.services.signers.addresses()
    ]
    views = await call.services.reader.signers(
        known,
        after=_after(call.query.cursor),
        limit=call.query.limit,
        addresses=call.caller.addresses,
    )
    next_cursor = str(views[-1].signer) if len(views) == call.query.limit else None
    return Response(SignersPage(items=[describe(call, view) for view in views], next=next_cursor))


def _after(cursor: str | None) -> Signer | None:
    if cursor is None:
        return None
    chain_id, _, address = cursor.partition(":")
    if not re.fullmatch(r"[0-9]{1,18}", chain_id) or not re.fullmatch(r"0x[0-9a-f]{40}", address):
        raise ApiError("cursor_invalid", "the cursor was not issued by this API", field="cursor")
    return Signer(int(chain_id), Address(address))


async def detail(call: RequestContext) -> Response:
    view = await existing(call)
    rules = call.services.signers.settings(view.signer.address)
    balance_wei: str | None = None
    on_chain: ChainNonces | None = None
    error: str | None = None
    try:
        balance_wei, on_chain = await _on_chain(call, view.signer)
    except (RpcError, TimeoutError) as failure:
        error = str(failure)[:300] or "the chain's endpoints did not respond in time"
    return Response(
        signer_out(
            view,
            mode=rules.mode,
            max_in_flight=rules.max_in_flight,
            has_key=view.signer.address in call.services.signers.addresses(),
            shows_nonce=call.shows_nonce,
            on_chain=on_chain,
            balance_wei=balance_wei,
            chain_error=error or UNSET,
        )
    )


async def _on_chain(call: RequestContext, signer: Signer) -> tuple[str, ChainNonces]:
    chain, address = call.services.chains.by_id[signer.chain_id], Address(signer.address)
    async with asyncio.timeout(CHAIN_TIMEOUT_S):
        balance_wei, latest, pending = await asyncio.gather(
            chain.balance_wei(address), chain.nonce(address, "latest"), chain.nonce(address, "pending")
        )
    return str(balance_wei), ChainNonces(latest=latest, pending=pending)

"""Handle spending policies: get, replace, remove."""

from __future__ import annotations

import re

from fencepost.api.context import RequestContext, Response
from fencepost.api.problems import ApiError
from fencepost.api.request_parser import quantity
from fencepost.api.signers import existing
from fencepost.application.accept import MAX_GAS, MAX_WEI
from fencepost.application.spending_policy import Limits
from fencepost.domain.ids import Signer
from fencepost.schemas.requests import PolicyIn
from fencepost.schemas.responses import PolicyOut

_SELECTOR = re.compile(r"0x([0-9a-f]{8})?")


async def get(call: RequestContext) -> Response:
    signer = (await existing(call)).signer
    return await _policy_response(call, signer, (await call.services.spending.policies.all()).get(signer))


async def put(call: RequestContext) -> Response:
    signer = (await existing(call)).signer
    limits = _limits(call, call.body)
    await call.services.spending.policies.put(signer, limits, call.caller.actor(None))
    return await _policy_response(call, signer, limits)


async def remove(call: RequestContext) -> Response:
    signer = (await existing(call)).signer
    await call.services.spending.policies.remove(signer, call.caller.actor(None))
    return await _policy_response(call, signer, None)


def _limits(call: RequestContext, body: PolicyIn) -> Limits:
    receivers = selectors = None
    if body.receivers is not None:
        receivers = frozenset(
            call.address(text, f"receivers[{index}]") for index, text in enumerate(body.receivers)
        )
    if body.selectors is not None:
        selectors = frozenset(
            _selector(call, text, f"selectors[{index}]") for index, text in enumerate(body.selectors)
        )
    return Limits(
        receivers=receivers,
        selectors=selectors,
        value_wei_max=None
        if body.value_wei_max is None
        else quantity(body.value_wei_max, "valueWeiMax", maximum=MAX_WEI),
        daily_wei_max=None
        if body.daily_wei_max is None
        else quantity(body.daily_wei_max, "dailyWeiMax", maximum=MAX_WEI),
        gas_max=None if body.gas_max is None else quantity(body.gas_max, "gasMax", maximum=MAX_GAS),
        fee_cap_max_wei=None
        if body.fee_cap_max is None
        else quantity(body.fee_cap_max, "feeCapMax", maximum=MAX_WEI),
    )


def _selector(call: RequestContext, text: str, field: str) -> str:
    """Return the selector as hex, from hex, `0x` for a plain transfer, or a function signature."""
    if _SELECTOR.fullmatch(text.lower()):
        return text.lower()
    selector = call.services.codec.selector_of(text)
    if selector is None:
        raise ApiError(
            "field_invalid",
            f'{field}: must be 0x and 8 hex digits, 0x, or a signature such as "f(uint256)"',
            field=field,
        )
    return "0x" + selector.hex()


async def _policy_response(call: RequestContext, signer: Signer, limits: Limits | None) -> Response:
    limits = limits or Limits()
    spent_wei = await call.services.spending.spent_today_wei(signer)
    return Response(
        PolicyOut(
            receivers=None if limits.receivers is None else sorted(limits.receivers),
            selectors=None if limits.selectors is None else sorted(limits.selectors),
            value_wei_max=None if limits.value_wei_max is None else str(limits.value_wei_max),
            daily_wei_max=None if limits.daily_wei_max is None else str(limits.daily_wei_max),
            gas_max=None if limits.gas_max is None else str(limits.gas_max),
            fee_cap_max=None if limits.fee_cap_max_wei is None else str(limits.fee_cap_max_wei),
            spent_today_wei=str(spent_wei),
        )
    )

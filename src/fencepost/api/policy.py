"""Policies of signers over HTTP: look, set whole, take away."""

from __future__ import annotations

import re

from fencepost.api.calls import Call, Reply
from fencepost.api.intake import quantity
from fencepost.api.problems import ApiError
from fencepost.api.signers import existing
from fencepost.api.wire_in import PolicyIn
from fencepost.api.wire_out import PolicyOut
from fencepost.application.accept import MOST_WEI
from fencepost.application.policy import Limits
from fencepost.domain.ids import Signer

_SELECTOR = re.compile(r"0x([0-9a-f]{8})?")


async def get(call: Call) -> Reply:
    signer = (await existing(call)).signer
    return await _reply(call, signer, (await call.services.policy.policies.all()).get(signer))


async def put(call: Call) -> Reply:
    signer = (await existing(call)).signer
    limits = _limits(call, call.body)
    await call.services.policy.policies.put(signer, limits, call.caller.actor(None))
    return await _reply(call, signer, limits)


async def remove(call: Call) -> Reply:
    signer = (await existing(call)).signer
    await call.services.policy.policies.remove(signer, call.caller.actor(None))
    return await _reply(call, signer, None)


def _limits(call: Call, asked: PolicyIn) -> Limits:
    receivers = selectors = None
    if asked.receivers is not None:
        receivers = frozenset(
            call.address(text, f"receivers[{index}]") for index, text in enumerate(asked.receivers)
        )
    if asked.selectors is not None:
        selectors = frozenset(
            _selector(call, text, f"selectors[{index}]") for index, text in enumerate(asked.selectors)
        )
    return Limits(
        receivers=receivers,
        selectors=selectors,
        value_wei_max=None
        if asked.value_wei_max is None
        else quantity(asked.value_wei_max, "valueWeiMax", most=MOST_WEI),
        daily_wei_max=None
        if asked.daily_wei_max is None
        else quantity(asked.daily_wei_max, "dailyWeiMax", most=MOST_WEI),
    )


def _selector(call: Call, text: str, field: str) -> str:
    """Four bytes in hex, `0x` for a plain transfer, or a signature that they are made of."""
    if _SELECTOR.fullmatch(text.lower()):
        return text.lower()
    selector = call.services.selector_of(text)
    if selector is None:
        raise ApiError("field_invalid", f'{field}: must be 0x and 8 hex digits, or "f(uint256)"', field=field)
    return "0x" + selector.hex()


async def _reply(call: Call, signer: Signer, limits: Limits | None) -> Reply:
    limits = limits or Limits()
    spent_wei = await call.services.policy.policies.spent_today_wei(signer)
    return Reply(
        PolicyOut(
            receivers=None if limits.receivers is None else sorted(limits.receivers),
            selectors=None if limits.selectors is None else sorted(limits.selectors),
            value_wei_max=None if limits.value_wei_max is None else str(limits.value_wei_max),
            daily_wei_max=None if limits.daily_wei_max is None else str(limits.daily_wei_max),
            spent_today_wei=str(spent_wei),
        )
    )

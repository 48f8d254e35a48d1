"""Take a request: validated, made canonical, stored once. Any node may do it; no lease is needed.

Dying before the commit leaves nothing, and the caller tries again; dying after it leaves a request that some lane will
find. The same request id with the same payload is the same request, however often it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from fencepost.application.intake import Intake
from fencepost.application.ports import Accepted, AcceptOutcome, KeyPort, Ledger, NewRequest, Requested
from fencepost.application.tx_ids import new_tx_id
from fencepost.domain.ids import Address, Signer
from fencepost.domain.managed import Intent, Kind
from fencepost.domain.transaction import Call, TxType
from fencepost.domain.value import Value
from fencepost.errors import InvalidRequest, RequestConflict, SignerProtected, UnknownSigner

MOST_DATA_BYTES = 128 * 1024  # what nodes take in one transaction
MOST_WEI = 2**256 - 1
MOST_GAS = 2**63 - 1
MOST_REQUEST_ID = 200

# How long a handler's request waits for its turn. If its process dies meanwhile, this is how long others wait for it.
HANDLER_WAITS_S = 30.0


class Request(Value, frozen=True):
    signer: Signer
    intent: Intent
    request_id: str | None = None
    valid_for_s: float | None = None
    tags: tuple[str, ...] = ()  # to find it by; no part of what makes two requests the same


@dataclass(slots=True)
class Accept:
    ledger: Ledger
    keys: KeyPort
    chain_ids: frozenset[int]
    hint: Callable[[Signer], None]  # tells whoever may hold the lane
    intake: Intake | None = None  # how much may wait; None is without bounds
    # The same for requests that were stored just now, with those that its lane may take as they are; None: it is a hint.
    requested: Requested | None = None
    _addresses: frozenset[Address] = field(init=False)  # no key comes or goes while a process runs

    def __post_init__(self) -> None:
        self._addresses = frozenset(self.keys.addresses())

    async def accept(self, requests: Sequence[Request]) -> Sequence[Accepted]:
        """One outcome each. Raises when a request is malformed; callers with many validate each by itself.

        Raises `Overloaded`, with nothing stored, when too much waits already.
        """
        for request in requests:
            self.validate(request)
        return await self.accept_valid(requests)

    def accept_valid(self, requests: Sequence[Request]) -> Awaitable[Sequence[Accepted]]:
        """As `accept`, for requests that were validated one by one."""
        return self._store([_new_request(request) for request in requests])

    def begin(
        self, request: Request, then: Callable[[asyncio.Future[Accepted]], None]
    ) -> asyncio.Future[Accepted]:
        """As `accept_valid` for one, for whoever does not wait in a task: `then` gets what came of it.

        Whoever cancels it does not learn that; it may be stored all the same.
        """
        signer, new = request.signer, _new_request(request)
        if self.intake is not None:
            self.intake.begin((signer,))
        storing = asyncio.ensure_future(self.ledger.accept_one(new))
        storing.add_done_callback(partial(self._end, signer, then))
        return storing

    def _end(
        self,
        signer: Signer,
        then: Callable[[asyncio.Future[Accepted]], None],
        storing: asyncio.Future[Accepted],
    ) -> None:
        intake = self.intake
        if intake is not None:
            intake.end(1)
        if not storing.cancelled() and storing.exception() is None:
            accepted = storing.result()
            if accepted.outcome is AcceptOutcome.CREATED:
                if intake is not None:
                    intake.stored(signer)
                self._tell(signer, (accepted,))
        then(storing)

    async def _store(self, requests: Sequence[NewRequest]) -> Sequence[Accepted]:
        signers = [request.signer for request in requests]
        intake = self.intake
        if intake is None:
            accepted = await self.ledger.accept(requests)
        else:
            intake.begin(signers)
            try:
                accepted = await self.ledger.accept(requests)
            finally:
                intake.end(len(signers))
        for signer, answers in _created(signers, accepted).items():
            if intake is not None:
                intake.stored(signer, len(answers))
            self._tell(signer, answers)
        return accepted

    def _tell(self, signer: Signer, answers: Sequence[Accepted]) -> None:
        """Dying before this leaves requests that the next look into the queue finds."""
        if self.requested is None:
            self.hint(signer)
            return
        if len(answers) == 1:  # in a crowd of signers, and where requests come one by one
            queued, behind = answers[0].queued, answers[0].behind
            self.requested(signer, () if queued is None else (queued,), behind)
            return
        next_in_line = [answer.queued for answer in answers if answer.queued is not None]
        all_behind = {seq for answer in answers for seq in answer.behind}
        self.requested(signer, next_in_line if len(next_in_line) == len(answers) else (), all_behind)

    async def create(self, request: Request) -> Accepted:
        """One request; what is no success is raised."""
        answer = (await self.accept([request]))[0]
        if answer.outcome is AcceptOutcome.CONFLICT:
            raise RequestConflict(
                f"request {request.request_id!r} of {request.signer.address} is known with another payload"
                f" (transaction {answer.tx_id})"
            )
        if answer.outcome is AcceptOutcome.PROTECTED:
            raise SignerProtected(
                f"{request.signer.address} takes nothing new until a person decides: {answer.detail}"
            )
        return answer

    async def create_for_handler(self, signer: Signer, tx_id: UUID, origin: UUID) -> Accepted:
        """A request whose transaction a function of this process will build."""
        intent = Intent(call=Call(to=signer.address))
        self.validate(Request(signer, intent))
        new = NewRequest(
            tx_id=tx_id,
            signer=signer,
            request_id=None,
            kind=Kind.HANDLER,
            intent=intent,
            origin=origin,
            valid_for_s=HANDLER_WAITS_S,
        )
        answer = (await self._store([new]))[0]
        if answer.outcome is AcceptOutcome.PROTECTED:
            raise SignerProtected(
                f"{signer.address} takes nothing new until a person decides: {answer.detail}"
            )
        return answer

    def validate(self, request: Request) -> None:
        signer, intent = request.signer, request.intent
        if signer.chain_id not in self.chain_ids:
            known = ", ".join(str(chain_id) for chain_id in sorted(self.chain_ids))
            raise InvalidRequest(
                f"chain {signer.chain_id} is not configured (known: {known})", field="chainId"
            )
        if signer.address not in self._addresses:
            raise UnknownSigner(f"no key is configured for signer {signer.address}")
        if request.request_id is not None and not 0 < len(request.request_id) <= MOST_REQUEST_ID:
            raise InvalidRequest(f"must have 1 to {MOST_REQUEST_ID} characters", field="requestId")
        if request.valid_for_s is not None and request.valid_for_s <= 0:
            raise InvalidRequest("lies in the past", field="validUntil")
        _validate_intent(intent)


def _created(signers: Sequence[Signer], accepted: Sequence[Accepted]) -> Mapping[Signer, Sequence[Accepted]]:
    """What is new, by signer."""
    if len(accepted) == 1:  # most come alone
        return {signers[0]: accepted} if accepted[0].outcome is AcceptOutcome.CREATED else {}
    created: dict[Signer, list[Accepted]] = {}
    for signer, answer in zip(signers, accepted, strict=True):
        if answer.outcome is AcceptOutcome.CREATED:
            created.setdefault(signer, []).append(answer)
    return created


def _validate_intent(intent: Intent) -> None:
    call = intent.call
    if len(call.data) > MOST_DATA_BYTES:
        raise InvalidRequest(f"has more than {MOST_DATA_BYTES} bytes", field="payload.data")
    if call.to is None and not call.data:
        raise InvalidRequest(
            "a deployment needs code in data; a transfer needs a receiver", field="payload.to"
        )
    if not 0 <= call.value_wei <= MOST_WEI:
        raise InvalidRequest("must be from 0 to 2^256-1", field="payload.value")
    if intent.gas is not None and not 0 < intent.gas <= MOST_GAS:
        raise InvalidRequest("must be from 1 to 2^63-1", field="payload.gas")
    if intent.fees is not None and not 0 <= intent.fees.tip_wei <= intent.fees.fee_cap_wei <= MOST_WEI:
        raise InvalidRequest("the tip must not pass the fee cap", field="payload.fees")
    if call.access_list and intent.type is TxType.LEGACY:
        raise InvalidRequest("a legacy transaction has no access list", field="payload.accessList")


def _new_request(request: Request) -> NewRequest:
    return NewRequest(
        tx_id=new_tx_id(),
        signer=request.signer,
        request_id=request.request_id,
        kind=Kind.INTENT,
        intent=request.intent,
        valid_for_s=request.valid_for_s,
        tags=request.tags,
    )

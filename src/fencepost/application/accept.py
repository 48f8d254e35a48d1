"""Accept requests: validate each, bring it into canonical form, store it once. Any node may do it; no lease is needed.

A crash before the commit leaves nothing, and the caller tries again. A crash after it leaves a request that the signer's
lane finds. The same request id with the same payload is the same request, however often it is submitted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from fencepost.application.admission import AdmissionControl
from fencepost.application.ports import Accepted, AcceptOutcome, KeyPort, Ledger, NewRequest, Requested
from fencepost.application.uuid7 import new_tx_id
from fencepost.domain.gas import encoded_bytes_max, intrinsic_gas
from fencepost.domain.ids import Address, Signer
from fencepost.domain.struct import Struct
from fencepost.domain.transaction import Call, TxType
from fencepost.domain.transaction_state import Intent, Kind
from fencepost.errors import InvalidRequest, RequestConflict, SignerProtected, UnknownSigner, Unsendable

MAX_DATA_BYTES = 128 * 1024  # what endpoints accept in one transaction
MAX_TX_BYTES = 128 * 1024  # of the whole transaction, with its access list and signature
MAX_WEI = 2**256 - 1
MAX_GAS = 2**63 - 1
MAX_REQUEST_ID = 200

DAY_S = 24 * 3600.0
# A deadline further away than this is a mistake, and clients of the database may be unable to read its date.
MAX_VALID_FOR_S = 3650 * DAY_S

# How long a handler's request waits for its nonce. If its process dies meanwhile, the requests behind it wait this long.
HANDLER_WAIT_TIMEOUT_S = 30.0

# How long a process keeps a handler that no lane called: by then its request has expired, whatever the clock skew.
HANDLER_TTL_S = 2 * HANDLER_WAIT_TIMEOUT_S


class Request(Struct, frozen=True):
    signer: Signer
    intent: Intent
    request_id: str | None = None
    valid_for_s: float | None = None
    tags: tuple[str, ...] = ()  # for searches; not compared when a request id is submitted again
    key_id: str | None = None  # of the API key that submitted it
    tx_id: UUID | None = None  # set if something was reserved under this id before


@dataclass(slots=True)
class RequestAcceptor:
    ledger: Ledger
    keys: KeyPort
    chain_ids: frozenset[int]
    hint: Callable[[Signer], object]  # wakes the lease holder's lane
    admission: AdmissionControl | None = None  # None: without bounds
    # Called for requests that were just stored, with those that the lane may take without a load; None: call `hint`.
    requested: Requested | None = None
    tx_gas_max: int | None = None  # EIP-7825; None: no limit
    block_gas_limit: Callable[[int], int | None] = lambda _: (
        None
    )  # of a chain's newest block, where it is known
    _addresses: frozenset[Address] = field(init=False)  # keys don't change while a process runs

    def __post_init__(self) -> None:
        self._addresses = frozenset(self.keys.addresses())

    async def accept(self, requests: Sequence[Request]) -> Sequence[Accepted]:
        """Validate and store requests, and return one outcome per request.

        Raises `InvalidRequest` for the first malformed one; a caller with many validates each by itself. Raises
        `Overloaded`, with nothing stored, if admission control has no room.
        """
        for request in requests:
            self.validate(request)
        return await self.accept_valid(requests)

    def accept_valid(self, requests: Sequence[Request]) -> Awaitable[Sequence[Accepted]]:
        """Store requests that the caller has validated; else as `accept`."""
        return self._store([_new_request(request) for request in requests])

    async def _store(self, requests: Sequence[NewRequest]) -> Sequence[Accepted]:
        """Store requests of one caller, which share one API key."""
        signers = [request.signer for request in requests]
        key_id = requests[0].key_id if requests else None
        admission = self.admission
        if admission is None:
            accepted = await self.ledger.accept(requests)
        else:
            admission.reserve(signers, key_id=key_id)
            try:
                accepted = await self.ledger.accept(requests)
            finally:
                admission.release(len(signers), key_id=key_id)
        for signer, created in _created(signers, accepted).items():
            if admission is not None:
                admission.add_stored(signer, len(created), key_id=key_id)
            self._notify(signer, created)
        return accepted

    def _notify(self, signer: Signer, created: Sequence[Accepted]) -> None:
        """Notify the lane. If the process dies before this, the next load of the queue finds the requests."""
        if self.requested is None:
            self.hint(signer)
            return
        if len(created) == 1:  # the common case
            queued, behind = created[0].queued, created[0].behind
            self.requested(signer, () if queued is None else (queued,), behind)
            return
        next_in_line = [accepted.queued for accepted in created if accepted.queued is not None]
        all_behind = {seq for accepted in created for seq in accepted.behind}
        self.requested(signer, next_in_line if len(next_in_line) == len(created) else (), all_behind)

    async def create(self, request: Request) -> Accepted:
        """Accept one request; raise an error unless it was created or is known."""
        accepted = (await self.accept([request]))[0]
        if accepted.outcome is AcceptOutcome.CONFLICT:
            raise RequestConflict(
                f"request {request.request_id!r} of {request.signer.address} exists with another payload"
                f" (transaction {accepted.tx_id})"
            )
        _raise_if_closed(request.signer, accepted)
        return accepted

    async def create_for_handler(
        self, signer: Signer, tx_id: UUID, origin: UUID, request_id: str | None = None
    ) -> Accepted:
        """Store a request whose transaction a handler of this process will build. A known request id is not stored again."""
        intent = Intent(call=Call(to=signer.address))
        self.validate(Request(signer, intent, request_id))
        new = NewRequest(
            tx_id=tx_id,
            signer=signer,
            request_id=request_id,
            kind=Kind.HANDLER,
            intent=intent,
            origin=origin,
            valid_for_s=HANDLER_WAIT_TIMEOUT_S,
        )
        accepted = (await self._store([new]))[0]
        if accepted.outcome is AcceptOutcome.CONFLICT or not await self._is_of_handler(accepted):
            raise RequestConflict(
                f"request {request_id!r} of {signer.address} exists as another kind of request"
                f" (transaction {accepted.tx_id})"
            )
        _raise_if_closed(signer, accepted)
        return accepted

    async def _is_of_handler(self, accepted: Accepted) -> bool:
        """Return whether the request is one for a handler. The payload does not show it: an ordinary request can have the same."""
        if accepted.outcome is not AcceptOutcome.KNOWN:
            return True
        known = await self.ledger.get(accepted.tx_id)
        return known is not None and known.kind is Kind.HANDLER

    def validate(self, request: Request) -> None:
        signer, intent = request.signer, request.intent
        if signer.chain_id not in self.chain_ids:
            known = ", ".join(str(chain_id) for chain_id in sorted(self.chain_ids))
            raise InvalidRequest(
                f"chain {signer.chain_id} is not configured (configured: {known})", field="chainId"
            )
        if signer.address not in self._addresses:
            raise UnknownSigner(f"no key is configured for signer {signer.address}")
        if request.request_id is not None and not 0 < len(request.request_id) <= MAX_REQUEST_ID:
            raise InvalidRequest(f"must have 1 to {MAX_REQUEST_ID} characters", field="requestId")
        if request.valid_for_s is not None:
            _validate_deadline(request.valid_for_s)
        _validate_intent(intent)
        self._require_sendable(signer.chain_id, intent)

    def _require_sendable(self, chain_id: int, intent: Intent) -> None:
        """Reject a request that every endpoint would reject permanently, before it costs a nonce."""
        gas = intent.gas
        if gas is None:
            return
        least = intrinsic_gas(intent.call)
        if gas < least:
            raise Unsendable(
                f"{gas} is below the intrinsic gas of the transaction, which is {least}",
                field="payload.gas",
                node_text=f"intrinsic gas too low: gas {gas}, minimum needed {least}",
            )
        block_limit = self.block_gas_limit(chain_id)
        if block_limit is not None and gas > block_limit:
            raise Unsendable(
                f"{gas} is above the block gas limit, which is {block_limit}",
                field="payload.gas",
                node_text=f"exceeds block gas limit: gas {gas}, limit {block_limit}",
            )
        if self.tx_gas_max is not None and gas > self.tx_gas_max:
            raise Unsendable(
                f"{gas} is above the gas limit per transaction, which is {self.tx_gas_max} (gas.tx_max)",
                field="payload.gas",
                node_text=f"transaction gas limit too high (cap: {self.tx_gas_max}, tx: {gas})",
            )


def _raise_if_closed(signer: Signer, accepted: Accepted) -> None:
    if accepted.outcome is AcceptOutcome.NONCE_ONLY:
        raise SignerProtected(f"{signer.address}: {accepted.detail}")
    if accepted.outcome is AcceptOutcome.PROTECTED:
        raise SignerProtected(
            f"signer {signer.address} accepts no requests until an operator decides: {accepted.detail}"
        )


def _created(signers: Sequence[Signer], accepted: Sequence[Accepted]) -> Mapping[Signer, Sequence[Accepted]]:
    """Group the created requests by signer."""
    if len(accepted) == 1:  # the common case
        return {signers[0]: accepted} if accepted[0].outcome is AcceptOutcome.CREATED else {}
    created: dict[Signer, list[Accepted]] = {}
    for signer, result in zip(signers, accepted, strict=True):
        if result.outcome is AcceptOutcome.CREATED:
            created.setdefault(signer, []).append(result)
    return created


def _validate_deadline(valid_for_s: float) -> None:
    if not valid_for_s > 0:  # also rejects NaN
        raise InvalidRequest("must be in the future", field="validUntil")
    if valid_for_s > MAX_VALID_FOR_S:
        days = round(MAX_VALID_FOR_S / DAY_S)
        raise InvalidRequest(
            f"is more than {days} days ahead; omit it for a request without a deadline",
            field="validUntil",
        )


def _validate_intent(intent: Intent) -> None:
    call = intent.call
    if len(call.data) > MAX_DATA_BYTES:
        raise InvalidRequest(f"has more than {MAX_DATA_BYTES} bytes", field="payload.data")
    if (size := encoded_bytes_max(call)) > MAX_TX_BYTES:
        raise Unsendable(
            f"makes a transaction of up to {size} bytes, but endpoints accept at most {MAX_TX_BYTES}",
            field="payload.data",
            node_text=f"oversized data: transaction size {size}, limit {MAX_TX_BYTES}",
        )
    if call.to is None and not call.data:
        raise InvalidRequest(
            "a deployment needs code in data; a transfer needs a receiver", field="payload.to"
        )
    if not 0 <= call.value_wei <= MAX_WEI:
        raise InvalidRequest("must be from 0 to 2^256-1", field="payload.value")
    if intent.gas is not None and not 0 < intent.gas <= MAX_GAS:
        raise InvalidRequest("must be from 1 to 2^63-1", field="payload.gas")
    if intent.fees is not None and not 0 <= intent.fees.tip_wei <= intent.fees.fee_cap_wei <= MAX_WEI:
        raise InvalidRequest("the tip must not exceed the fee cap", field="payload.fees")
    if call.access_list and intent.type is TxType.LEGACY:
        raise InvalidRequest("a legacy transaction has no access list", field="payload.accessList")


def _new_request(request: Request) -> NewRequest:
    return NewRequest(
        tx_id=request.tx_id or new_tx_id(),
        signer=request.signer,
        request_id=request.request_id,
        kind=Kind.INTENT,
        intent=request.intent,
        valid_for_s=request.valid_for_s,
        tags=request.tags,
        key_id=request.key_id,
    )

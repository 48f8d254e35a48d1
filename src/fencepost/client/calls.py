"""Everything that a client can ask a node, as steps; `Client` and `AsyncClient` list these and add nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import msgspec

from fencepost.api.wire_in import MOST_WAIT_S, AllocateIn, RecyclableIn, SubmittedIn, TxRequest, UsedIn
from fencepost.api.wire_out import (
    BatchOut,
    BatchResult,
    CommandOut,
    CompletionsOut,
    NodeOut,
    NodesOut,
    NonceOut,
    NoncesOut,
    NonceStatusOut,
    SignerOut,
    SignersPage,
    TxOut,
    TxPage,
    VersionOut,
)
from fencepost.client.asked import Asked, Until, chunks, to_wire
from fencepost.client.errors import BadAnswer, ClientError, NotReached, refusal
from fencepost.client.exchange import Call, Exchange, decoded
from fencepost.client.steps import Pages, Pause, Steps

A = TypeVar("A", bound=msgspec.Struct)

LONGEST_LOOK_S = 25.0  # proxies cut connections that are silent for long
WISH_WITHIN_S = 5.0
_OK = 200
_BUSY_PAUSE_S = 0.5

Decision = Literal["adopt", "keep", "fill"]


class Why(TypedDict, total=False):
    """What goes with a wish: why, who besides the key, and how many seconds to wait for its outcome."""

    reason: str | None
    by: str | None
    timeout_s: float


Include = Literal["attempts", "receipt", "confirmations", "history", "payload"]


@dataclass(slots=True)
class Calls:
    exchange: Exchange

    # ---- sending

    def send(
        self, *, wait: Until | None = None, timeout_s: float = 60.0, **asked: Unpack[Asked]
    ) -> Steps[TxOut]:
        """Hand a transaction over, once, however often the network fails.

        With `wait`, return when it has come that far; "confirmed" is any end, so look at `state`. Raises `NotReached`,
        with the transaction in it, when `timeout_s` is over first; the transaction goes on.
        """
        request = to_wire(asked)
        deadline_s = self.exchange.clock() + timeout_s
        look_s = min(LONGEST_LOOK_S, timeout_s)
        query = [] if wait is None else [("wait", wait), ("timeout", f"{look_s:.3f}")]
        body = msgspec.json.encode(request)
        try:
            # Who waits is patient: an answer that is lost after a long look must not use up the time for trying again.
            until_s = self.exchange.clock() + self.exchange.retry_for_s
            until_s = until_s if wait is None else max(until_s, deadline_s)
            call = Call("POST", "/tx", query, body, waits_s=look_s if wait else 0.0)
            answer = yield from self.exchange.ask(call, until_s=until_s)
            tx = decoded(answer, TxOut)
            if wait is None or answer.status == _OK:
                return tx
            return (yield from self._reach(tx.tx_id, wait, deadline_s, timeout_s))
        except ClientError as error:
            error.request_id = request.request_id
            raise

    def send_many(self, requests: Iterable[Asked]) -> Steps[list[TxOut | ClientError]]:
        """A result for each, in order: the transaction, or why there is none, with its `request_id`.

        One bad request does not harm the others, and neither does a node that goes away between them.
        """
        results: list[TxOut | ClientError] = []
        for chunk in chunks(to_wire(asked) for asked in requests):
            results += yield from self._send_chunk(chunk)
        return results

    def _send_chunk(self, chunk: Sequence[tuple[TxRequest, bytes]]) -> Steps[list[TxOut | ClientError]]:
        until_s = self.exchange.clock() + self.exchange.retry_for_s
        found: dict[int, TxOut | ClientError] = {}
        left = list(range(len(chunk)))
        while left:
            body = b'{"requests":[' + b",".join(chunk[index][1] for index in left) + b"]}"
            try:
                answer = yield from self.exchange.ask(Call("POST", "/tx/batch", body=body), until_s=until_s)
                told = [_outcome(result) for result in decoded(answer, BatchOut).results]
                if len(told) != len(left):
                    raise BadAnswer(f"{len(told)} results came for {len(left)} requests")
            except ClientError as error:
                told = [error] * len(left)
            found.update(zip(left, told, strict=True))
            # These were turned away one by one, because another node has their signer just now.
            left = [index for index in left if _is_turned_away(found[index])]
            if left and self.exchange.clock() + _BUSY_PAUSE_S >= until_s:
                break
            if left:
                self.exchange.move_on()
                yield Pause(_BUSY_PAUSE_S)
        return [_named(found[index], request) for index, (request, _) in enumerate(chunk)]

    def wait(self, tx_id: str, until: Until = "confirmed", *, timeout_s: float = 60.0) -> Steps[TxOut]:
        """The transaction when it has come that far; "confirmed" is any end. Raises `NotReached` like `send`."""
        return (yield from self._reach(tx_id, until, self.exchange.clock() + timeout_s, timeout_s))

    def _reach(self, tx_id: str, until: Until, deadline_s: float, timeout_s: float) -> Steps[TxOut]:
        while True:
            look_s = min(LONGEST_LOOK_S, max(0.0, deadline_s - self.exchange.clock()))
            query = [("wait", until), ("timeout", f"{look_s:.3f}")]
            call = Call("GET", f"/tx/{_part(tx_id)}", query, waits_s=look_s)
            # While it waits the node may be replaced: that is no reason to give up before the time is over.
            answer = yield from self.exchange.ask(call, until_s=deadline_s)
            tx = decoded(answer, TxOut)
            if answer.status == _OK:
                return tx
            if self.exchange.clock() >= deadline_s:
                raise NotReached(tx, until, timeout_s)

    # ---- looking

    def get(self, tx_id: str, *, include: Sequence[Include] = ()) -> Steps[TxOut]:
        return self._get(f"/tx/{_part(tx_id)}", TxOut, include=include)

    def by_request(
        self, signer: str, request_id: str, *, chain_id: int | None = None, include: Sequence[Include] = ()
    ) -> Steps[TxOut]:
        return self._get(
            "/tx/by-request", TxOut, signer=signer, requestId=request_id, chainId=chain_id, include=include
        )

    def by_hash(
        self, tx_hash: str, *, chain_id: int | None = None, include: Sequence[Include] = ()
    ) -> Steps[TxOut]:
        """By the hash of any attempt of it, mined or not."""
        return self._get(f"/tx/by-hash/{_part(tx_hash)}", TxOut, chainId=chain_id, include=include)

    def iterate(
        self,
        *,
        signer: Sequence[str] = (),
        chain_id: int | None = None,
        state: Sequence[str] = (),
        sub_state: Sequence[str] = (),
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        tag: Sequence[str] = (),
        include: Sequence[Include] = (),
        page_size: int = 100,
    ) -> Pages[TxOut]:
        """All that fit, the newest first, a page at a time; what is added meanwhile neither repeats nor hides one."""

        def page(cursor: str | None) -> Steps[tuple[list[TxOut], str | None]]:
            found = yield from self._get(
                "/tx",
                TxPage,
                signer=signer,
                chainId=chain_id,
                state=state,
                subState=sub_state,
                createdFrom=created_from,
                createdBefore=created_before,
                tag=tag,
                include=include,
                limit=page_size,
                cursor=cursor,
            )
            return found.items, found.next

        return page

    def completions(self, after: str = "", *, limit: int = 100) -> Steps[CompletionsOut]:
        """What ended after a place, in an order that never skips; keep `next` and pass it as `after`."""
        return self._get("/completions", CompletionsOut, after=after, limit=limit)

    def signers(self, *, page_size: int = 100) -> Pages[SignerOut]:
        def page(cursor: str | None) -> Steps[tuple[list[SignerOut], str | None]]:
            found = yield from self._get("/signers", SignersPage, limit=page_size, cursor=cursor)
            return found.items, found.next

        return page

    def signer(self, address: str, *, chain_id: int | None = None) -> Steps[SignerOut]:
        """With what the chain says about it: balance and nonces."""
        return self._get(f"/signers/{_part(address)}", SignerOut, chainId=chain_id)

    def command(self, command_id: str) -> Steps[CommandOut]:
        """What became of a wish that was not `done` at once."""
        return self._get(f"/commands/{_part(command_id)}", CommandOut)

    def nodes(self) -> Steps[list[NodeOut]]:
        return (yield from self._get("/nodes", NodesOut)).items

    def version(self) -> Steps[VersionOut]:
        return self._get("/version", VersionOut)

    # ---- wishes of people

    def cancel(self, tx_id: str, **why: Unpack[Why]) -> Steps[CommandOut]:
        """Drop it before it has a nonce, replace it at the same nonce after that."""
        return self._wish(f"/tx/{_part(tx_id)}/cancel", why)

    def suspend(self, tx_id: str, **why: Unpack[Why]) -> Steps[CommandOut]:
        """Leave it alone until it is resumed."""
        return self._wish(f"/tx/{_part(tx_id)}/suspend", why)

    def resume(self, tx_id: str, **why: Unpack[Why]) -> Steps[CommandOut]:
        """Go on with a suspended transaction."""
        return self._wish(f"/tx/{_part(tx_id)}/resume", why)

    def resubmit(self, tx_id: str, **why: Unpack[Why]) -> Steps[CommandOut]:
        """Send the same bytes again, now."""
        return self._wish(f"/tx/{_part(tx_id)}/resubmit", why)

    def bump(self, tx_id: str, **why: Unpack[Why]) -> Steps[CommandOut]:
        """Replace it at the same nonce by itself at a better price, now."""
        return self._wish(f"/tx/{_part(tx_id)}/bump", why)

    def pause_signer(
        self, address: str, *, chain_id: int | None = None, **why: Unpack[Why]
    ) -> Steps[CommandOut]:
        """Give no new nonces; what has one goes on."""
        return self._wish(f"/signers/{_part(address)}/pause", why, chainId=chain_id)

    def resume_signer(
        self, address: str, *, chain_id: int | None = None, **why: Unpack[Why]
    ) -> Steps[CommandOut]:
        """Give nonces again after a pause."""
        return self._wish(f"/signers/{_part(address)}/resume", why, chainId=chain_id)

    def drain_signer(
        self, address: str, *, chain_id: int | None = None, **why: Unpack[Why]
    ) -> Steps[CommandOut]:
        """Pause it, and wait until nothing is in flight (`drained` tells); it stays paused."""
        return self._wish(f"/signers/{_part(address)}/drain", why, chainId=chain_id)

    def protect_signer(
        self, address: str, *, chain_id: int | None = None, **why: Unpack[Why]
    ) -> Steps[CommandOut]:
        """Take nothing new and send nothing until a person decides."""
        return self._wish(f"/signers/{_part(address)}/protect", why, chainId=chain_id)

    def unprotect_signer(
        self, address: str, *, decision: Decision, chain_id: int | None = None, **why: Unpack[Why]
    ) -> Steps[CommandOut]:
        """Go on after PROTECT; it needs a `reason`.

        From the chain's nonce (`adopt`), from ours (`keep`), or from ours with fillers in the hole below it (`fill`).
        """
        return self._wish(f"/signers/{_part(address)}/unprotect", why, decision=decision, chainId=chain_id)

    # ---- nonces, for those who send by themselves

    def allocate_nonces(
        self, address: str, *, count: int = 1, hold_for_s: float | None = None, chain_id: int | None = None
    ) -> Steps[NoncesOut]:
        """Hold that many nonces, released ones first; each has the token that its marks need.

        Nothing names an allocation, so it is not repeated once it may have arrived: it ends in `Unreachable` with `sent`
        true or in `Unavailable`, and what was held then is released when its time is over.
        """
        asked = AllocateIn(count=count, hold_for_s=hold_for_s)
        call = Call(
            "POST",
            f"/nonces/{_part(address)}",
            _pairs({"chainId": chain_id}),
            msgspec.json.encode(asked),
            is_repeatable=False,
        )
        return decoded((yield from self.exchange.ask(call)), NoncesOut)

    def nonce_status(self, address: str, *, chain_id: int | None = None) -> Steps[NonceStatusOut]:
        """How many nonces of the signer are held, submitted, consumed and released."""
        return self._get(f"/nonces/{_part(address)}", NonceStatusOut, chainId=chain_id)

    def mark_submitted(
        self, address: str, nonce: int, *, token: str, tx_hash: str, chain_id: int | None = None
    ) -> Steps[NonceOut]:
        """Tell which transaction has the nonce; it is closed by itself when that is mined to depth."""
        return self._mark(address, nonce, "submitted", SubmittedIn(token=token, tx_hash=tx_hash), chain_id)

    def mark_used(
        self,
        address: str,
        nonce: int,
        *,
        token: str,
        tx_hash: str | None = None,
        chain_id: int | None = None,
    ) -> Steps[NonceOut]:
        """Close the nonce: it never comes back."""
        return self._mark(address, nonce, "used", UsedIn(token=token, tx_hash=tx_hash), chain_id)

    def mark_recyclable(
        self, address: str, nonce: int, *, token: str, chain_id: int | None = None
    ) -> Steps[NonceOut]:
        """Give the nonce back: it was not and will not be used.

        When an answer was lost and somebody holds the nonce by the next try, that ends in `hold_lost`: it is not ours.
        """
        return self._mark(address, nonce, "recyclable", RecyclableIn(token=token), chain_id)

    # ---- underneath

    def _mark(
        self, address: str, nonce: int, state: str, mark: msgspec.Struct, chain_id: int | None
    ) -> Steps[NonceOut]:
        # The token makes it safe to repeat: a mark that was made stays as it is, and no other holder is touched.
        path = f"/nonces/{_part(address)}/{_part(str(nonce))}/{state}"
        call = Call("POST", path, _pairs({"chainId": chain_id}), msgspec.json.encode(mark))
        return decoded((yield from self.exchange.ask(call)), NonceOut)

    def _get(self, path: str, wanted: type[A], **query: object) -> Steps[A]:
        return decoded((yield from self.exchange.ask(Call("GET", path, _pairs(query)))), wanted)

    def _wish(
        self, path: str, why: Why, *, decision: Decision | None = None, **query: object
    ) -> Steps[CommandOut]:
        within_s = min(max(0.0, why.get("timeout_s", WISH_WITHIN_S)), float(MOST_WAIT_S))
        said = {"reason": why.get("reason"), "by": why.get("by"), "decision": decision}
        answer = yield from self.exchange.ask(
            Call(
                "POST",
                path,
                [*_pairs(query), ("timeout", f"{within_s:.3f}")],
                msgspec.json.encode({name: value for name, value in said.items() if value is not None}),
                is_repeatable=False,
                waits_s=within_s,
            )
        )
        return decoded(answer, CommandOut)


def _part(text: str) -> str:
    return quote(str(text), safe="")


def _pairs(query: dict[str, object]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        match value:
            case None | "":
                pass
            case str() | int():
                pairs.append((name, str(value)))
            case datetime():
                pairs.append((name, value.isoformat()))
            case Sequence():
                pairs += [(name, str(one)) for one in value]
            case _:
                raise TypeError(f"{name} can't be a {type(value).__name__}")
    return pairs


def _outcome(result: BatchResult) -> TxOut | ClientError:
    if isinstance(result.tx, TxOut):
        return result.tx
    if isinstance(result.problem, msgspec.Struct):
        return refusal(result.problem)
    return BadAnswer("a result has neither a transaction nor a problem")


def _is_turned_away(result: TxOut | ClientError) -> bool:
    return isinstance(result, ClientError) and result.code == "not_leader"


def _named(result: TxOut | ClientError, request: TxRequest) -> TxOut | ClientError:
    return result.about(request.request_id) if isinstance(result, ClientError) else result

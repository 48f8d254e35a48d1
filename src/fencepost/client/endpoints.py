"""Define one method per API endpoint, as transport-independent steps that `Client` and `AsyncClient` run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import msgspec

from fencepost.client.errors import BadResponse, ClientError, NotReached, error_from_problem
from fencepost.client.protocol import Pages, Pause, Steps
from fencepost.client.retry import ClientCall, RetryPolicy, decode
from fencepost.client.types import Milestone, SendParams, chunks, to_wire
from fencepost.schemas.events import EventOut, EventsOut
from fencepost.schemas.explanations import ClusterStatusOut, ExplanationOut
from fencepost.schemas.requests import MAX_WAIT_S, AllocateIn, RecyclableIn, SubmittedIn, TxRequest, UsedIn
from fencepost.schemas.responses import (
    BatchOut,
    BatchResult,
    ChainFeesOut,
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
from fencepost.schemas.subscriptions import (
    DeletedOut,
    DeliveryAttemptOut,
    DeliveryAttemptsOut,
    ReplayOut,
    SubscriptionOut,
    SubscriptionsOut,
)

A = TypeVar("A", bound=msgspec.Struct)

MAX_POLL_S = 25.0  # proxies close connections that are silent for longer
COMMAND_TIMEOUT_S = 5.0
_OK = 200
_BUSY_PAUSE_S = 0.5

Decision = Literal["adopt", "keep", "fill"]


class CommandOptions(TypedDict, total=False):
    """Options of an operator command: its reason, its author besides the API key, and how long to wait for its outcome."""

    reason: str | None
    by: str | None
    timeout_s: float


Include = Literal["attempts", "receipt", "confirmations", "history", "payload"]


@dataclass(slots=True)
class Endpoints:
    """Build the steps of every API call; `retry` selects the node and repeats calls that are safe to repeat."""

    retry: RetryPolicy

    # ---- sending

    def send(
        self, *, wait: Milestone | None = None, timeout_s: float = 60.0, **params: Unpack[SendParams]
    ) -> Steps[TxOut]:
        """Submit a transaction exactly once, even if the network fails and the call is repeated.

        With `wait`, return when it has reached that milestone. "finished" means CONFIRMED, FAILED or CANCELLED;
        "confirmed" is another name for it, so check `state`. Raises `NotReached`, which carries the transaction, if
        `timeout_s` passes first; the node keeps processing the transaction.
        """
        request = to_wire(params)
        deadline_s = self.retry.clock() + timeout_s
        poll_s = min(MAX_POLL_S, timeout_s)
        query = [] if wait is None else [("wait", wait), ("timeout", f"{poll_s:.3f}")]
        body = msgspec.json.encode(request)
        try:
            # A caller with `wait` accepts up to `timeout_s`: a response lost after a long poll must leave time to retry.
            until_s = self.retry.clock() + self.retry.retry_for_s
            until_s = until_s if wait is None else max(until_s, deadline_s)
            call = ClientCall("POST", "/tx", query, body, wait_s=poll_s if wait else 0.0)
            response = yield from self.retry.call(call, until_s=until_s)
            tx = decode(response, TxOut)
            if wait is None or response.status == _OK:
                return tx
            return (yield from self._reach(tx.tx_id, wait, deadline_s, timeout_s))
        except ClientError as error:
            error.request_id = request.request_id
            raise

    def send_many(self, requests: Iterable[SendParams]) -> Steps[list[TxOut | ClientError]]:
        """Submit several transactions; return one result per request, in order.

        A result is the transaction, or a `ClientError` with the `request_id`. A rejected request or a lost node does not
        affect the other requests. A request that can't be encoded raises `InvalidRequest` before anything is sent.
        """
        results: list[TxOut | ClientError] = []
        for chunk in chunks([to_wire(params) for params in requests]):
            results += yield from self._send_chunk(chunk)
        return results

    def _send_chunk(self, chunk: Sequence[tuple[TxRequest, bytes]]) -> Steps[list[TxOut | ClientError]]:
        until_s = self.retry.clock() + self.retry.retry_for_s
        results_by_index: dict[int, TxOut | ClientError] = {}
        pending = list(range(len(chunk)))
        while pending:
            body = b'{"requests":[' + b",".join(chunk[index][1] for index in pending) + b"]}"
            try:
                response = yield from self.retry.call(
                    ClientCall("POST", "/tx/batch", body=body), until_s=until_s
                )
                results = [_outcome(result) for result in decode(response, BatchOut).results]
                if len(results) != len(pending):
                    raise BadResponse(f"the node returned {len(results)} results for {len(pending)} requests")
            except ClientError as error:
                results = [error] * len(pending)
            results_by_index.update(zip(pending, results, strict=True))
            # Repeat those that the node rejected because another node holds the signer's lease.
            pending = [index for index in pending if _is_not_leader(results_by_index[index])]
            if pending and self.retry.clock() + _BUSY_PAUSE_S >= until_s:
                break
            if pending:
                self.retry.prefer_next_node()
                yield Pause(_BUSY_PAUSE_S)
        return [
            _with_request_id(results_by_index[index], request) for index, (request, _) in enumerate(chunk)
        ]

    def wait(self, tx_id: str, until: Milestone = "finished", *, timeout_s: float = 60.0) -> Steps[TxOut]:
        """Wait until a transaction reaches a milestone and return it. Raises `NotReached` like `send`."""
        return (yield from self._reach(tx_id, until, self.retry.clock() + timeout_s, timeout_s))

    def _reach(self, tx_id: str, until: Milestone, deadline_s: float, timeout_s: float) -> Steps[TxOut]:
        while True:
            poll_s = min(MAX_POLL_S, max(0.0, deadline_s - self.retry.clock()))
            query = [("wait", until), ("timeout", f"{poll_s:.3f}")]
            call = ClientCall("GET", f"/tx/{_quoted(tx_id)}", query, wait_s=poll_s)
            # The node may be restarted while the caller waits: keep retrying until the caller's own deadline.
            response = yield from self.retry.call(call, until_s=deadline_s)
            tx = decode(response, TxOut)
            if response.status == _OK:
                return tx
            if self.retry.clock() >= deadline_s:
                raise NotReached(tx, until, timeout_s)

    # ---- queries

    def get(self, tx_id: str, *, include: Sequence[Include] = ()) -> Steps[TxOut]:
        """Return a transaction by its id; `include` adds parts such as its attempts."""
        return self._get(f"/tx/{_quoted(tx_id)}", TxOut, include=include)

    def by_request(
        self, signer: str, request_id: str, *, chain_id: int | None = None, include: Sequence[Include] = ()
    ) -> Steps[TxOut]:
        """Return a transaction by its signer and request id."""
        return self._get(
            "/tx/by-request", TxOut, signer=signer, requestId=request_id, chainId=chain_id, include=include
        )

    def by_hash(
        self, tx_hash: str, *, chain_id: int | None = None, include: Sequence[Include] = ()
    ) -> Steps[TxOut]:
        """Return a transaction by the hash of any of its attempts, mined or not."""
        return self._get(f"/tx/by-hash/{_quoted(tx_hash)}", TxOut, chainId=chain_id, include=include)

    def explain(self, tx_id: str) -> Steps[ExplanationOut]:
        """Explain why a transaction is not final: one cause, its evidence, and what to do."""
        return self._get(f"/tx/{_quoted(tx_id)}/explain", ExplanationOut)

    def explain_signer(self, address: str, *, chain_id: int | None = None) -> Steps[ExplanationOut]:
        """Explain why a signer does not send."""
        return self._get(f"/signers/{_quoted(address)}/explain", ExplanationOut, chainId=chain_id)

    def status(self) -> Steps[ClusterStatusOut]:
        """Return what is wrong anywhere: database, chains, endpoints, nodes and signers."""
        return self._get("/status", ClusterStatusOut)

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
        """Iterate over all matching transactions, newest first, fetching one page at a time.

        Transactions that are added meanwhile neither repeat nor hide one.
        """

        def page(cursor: str | None) -> Steps[tuple[list[TxOut], str | None]]:
            page_out = yield from self._get(
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
            return page_out.items, page_out.next

        return page

    def completions(self, after: str = "", *, limit: int = 100) -> Steps[CompletionsOut]:
        """Return transactions that ended after a cursor, in an order that never skips one.

        Store `next` and pass it as `after` in the next call.
        """
        return self._get("/completions", CompletionsOut, after=after, limit=limit)

    def events(
        self,
        after: str = "",
        *,
        types: Sequence[str] = (),
        signers: Sequence[str] = (),
        tags: Sequence[str] = (),
    ) -> Pages[EventOut]:
        """Iterate over events in the order of the log, and keep waiting for new ones.

        `after` is the id of the last event that was processed, "" for the oldest kept event, or "now". Calls are repeated
        at the other nodes while a node is unreachable. Store the id of an event after its work is done: events since then are
        delivered again after a restart.
        """
        filters = [("types", name) for name in types] + [("signer", address) for address in signers]
        filters += [("tag", tag) for tag in tags]

        def page(cursor: str | None) -> Steps[tuple[list[EventOut], str | None]]:
            query = [("after", after if cursor is None else cursor), ("wait", f"{MAX_POLL_S:.0f}"), *filters]
            call = ClientCall("GET", "/events", query, wait_s=MAX_POLL_S)
            until_s = self.retry.clock() + MAX_POLL_S + self.retry.retry_for_s
            response = yield from self.retry.call(call, until_s=until_s)
            page_out = decode(response, EventsOut)
            return page_out.items, page_out.next

        return page

    def signers(self, *, page_size: int = 100) -> Pages[SignerOut]:
        """Iterate over all signers that have a key at the node or rows in the database."""

        def page(cursor: str | None) -> Steps[tuple[list[SignerOut], str | None]]:
            page_out = yield from self._get("/signers", SignersPage, limit=page_size, cursor=cursor)
            return page_out.items, page_out.next

        return page

    def signer(self, address: str, *, chain_id: int | None = None) -> Steps[SignerOut]:
        """Return a signer, with its balance and nonces on the chain."""
        return self._get(f"/signers/{_quoted(address)}", SignerOut, chainId=chain_id)

    def command(self, command_id: str) -> Steps[CommandOut]:
        """Return an operator command and its outcome, for a command that was not `done` when it was sent."""
        return self._get(f"/commands/{_quoted(command_id)}", CommandOut)

    def withdraw_command(self, command_id: str) -> Steps[CommandOut]:
        """Withdraw a command that is not done yet, and return that command.

        `withdrawn` is true if the lane will not run it. Otherwise `done` says why: the command was done before, or the
        lane has not read the withdrawal yet. Withdrawing twice is safe, so the call is repeated if the response is lost.
        """
        call = ClientCall("DELETE", f"/commands/{_quoted(command_id)}", wait_s=COMMAND_TIMEOUT_S)
        return decode((yield from self.retry.call(call)), CommandOut)

    def nodes(self) -> Steps[list[NodeOut]]:
        """Return all known nodes, live ones first."""
        return (yield from self._get("/nodes", NodesOut)).items

    def chain_fees(self, chain_id: int) -> Steps[ChainFeesOut]:
        """Return what each fee tier pays now on a chain."""
        return self._get(f"/chains/{chain_id}/fees", ChainFeesOut)

    def version(self) -> Steps[VersionOut]:
        """Return the versions of the node and its API."""
        return self._get("/version", VersionOut)

    # ---- operator commands

    def cancel(self, tx_id: str, **options: Unpack[CommandOptions]) -> Steps[CommandOut]:
        """Cancel a transaction: drop it if it has no nonce yet, else replace it at the same nonce."""
        return self._command(f"/tx/{_quoted(tx_id)}/cancel", options)

    def suspend(self, tx_id: str, **options: Unpack[CommandOptions]) -> Steps[CommandOut]:
        """Suspend a transaction: do nothing with it until it is resumed."""
        return self._command(f"/tx/{_quoted(tx_id)}/suspend", options)

    def resume(self, tx_id: str, **options: Unpack[CommandOptions]) -> Steps[CommandOut]:
        """Resume a suspended transaction."""
        return self._command(f"/tx/{_quoted(tx_id)}/resume", options)

    def resubmit(self, tx_id: str, **options: Unpack[CommandOptions]) -> Steps[CommandOut]:
        """Resubmit a transaction now: send the same bytes again."""
        return self._command(f"/tx/{_quoted(tx_id)}/resubmit", options)

    def bump(self, tx_id: str, **options: Unpack[CommandOptions]) -> Steps[CommandOut]:
        """Bump a transaction now: sign the same intent again at a higher price."""
        return self._command(f"/tx/{_quoted(tx_id)}/bump", options)

    def pause_signer(
        self, address: str, *, chain_id: int | None = None, **options: Unpack[CommandOptions]
    ) -> Steps[CommandOut]:
        """Pause a signer: allocate no new nonces; transactions that have one continue."""
        return self._command(f"/signers/{_quoted(address)}/pause", options, chainId=chain_id)

    def resume_signer(
        self, address: str, *, chain_id: int | None = None, **options: Unpack[CommandOptions]
    ) -> Steps[CommandOut]:
        """Resume a paused signer: allocate nonces again."""
        return self._command(f"/signers/{_quoted(address)}/resume", options, chainId=chain_id)

    def drain_signer(
        self, address: str, *, chain_id: int | None = None, **options: Unpack[CommandOptions]
    ) -> Steps[CommandOut]:
        """Drain a signer: pause it and wait until nothing is in flight (then `drained` is true). It stays paused."""
        return self._command(f"/signers/{_quoted(address)}/drain", options, chainId=chain_id)

    def protect_signer(
        self, address: str, *, chain_id: int | None = None, **options: Unpack[CommandOptions]
    ) -> Steps[CommandOut]:
        """Put a signer into PROTECT: accept and send nothing until an operator decides."""
        return self._command(f"/signers/{_quoted(address)}/protect", options, chainId=chain_id)

    def unprotect_signer(
        self,
        address: str,
        *,
        decision: Decision,
        chain_id: int | None = None,
        **options: Unpack[CommandOptions],
    ) -> Steps[CommandOut]:
        """End PROTECT; a `reason` is required.

        Continue from the chain's nonce (`adopt`), from ours (`keep`), or from ours after fillers close the nonce gap
        below it (`fill`).
        """
        return self._command(
            f"/signers/{_quoted(address)}/unprotect", options, decision=decision, chainId=chain_id
        )

    # ---- subscriptions

    def create_subscription(
        self,
        url: str | None = None,
        *,
        type: Literal["webhook", "websocket"] = "webhook",  # noqa: A002 - the API's word
        types: Sequence[str] | None = None,
        signers: Sequence[str] | None = None,
        tags: Sequence[str] = (),
        chain_id: int | None = None,
        start: str = "now",
        ordered: Literal["none", "signer"] = "none",
        on_error: Literal["block", "skip"] = "block",
    ) -> Steps[SubscriptionOut]:
        """Create a subscription of this API key. Its `secret` is shown once: store it.

        A creation has no id, so it is not repeated once a node may have received it.
        """
        body = {
            "type": type,
            "url": url,
            "filter": {"types": types, "signers": signers, "tags": list(tags), "chainId": chain_id},
            "start": start,
            "ordered": ordered,
            "onError": on_error,
        }
        call = ClientCall("POST", "/subscriptions", [], msgspec.json.encode(body), is_repeatable=False)
        return decode((yield from self.retry.call(call)), SubscriptionOut)

    def subscriptions(self) -> Steps[list[SubscriptionOut]]:
        """Return the subscriptions of this API key."""
        return (yield from self._get("/subscriptions", SubscriptionsOut)).items

    def subscription(self, subscription_id: str) -> Steps[SubscriptionOut]:
        """Return a subscription."""
        return self._get(f"/subscriptions/{_quoted(subscription_id)}", SubscriptionOut)

    def pause_subscription(self, subscription_id: str) -> Steps[SubscriptionOut]:
        """Stop the deliveries of a subscription; the log keeps its events."""
        return self._change(subscription_id, "pause", SubscriptionOut)

    def resume_subscription(
        self, subscription_id: str, *, start: str | None = None
    ) -> Steps[SubscriptionOut]:
        """Start the deliveries again, at the checkpoint or from a new start."""
        return self._change(subscription_id, "resume", SubscriptionOut, {"start": start})

    def delete_subscription(self, subscription_id: str) -> Steps[DeletedOut]:
        """Delete a subscription with its deliveries and attempts."""
        call = ClientCall("DELETE", f"/subscriptions/{_quoted(subscription_id)}", [])
        return decode((yield from self.retry.call(call)), DeletedOut)

    def rotate_secret(self, subscription_id: str) -> Steps[SubscriptionOut]:
        """Get a new `secret`, shown once. For a while the former one signs, too."""
        return self._change(subscription_id, "rotate-secret", SubscriptionOut, is_repeatable=False)

    def test_subscription(self, subscription_id: str) -> Steps[DeliveryAttemptOut]:
        """Send a test event now, and return what the endpoint answered."""
        return self._change(subscription_id, "test", DeliveryAttemptOut, is_repeatable=False)

    def replay(
        self,
        subscription_id: str,
        *,
        event: str | None = None,
        after: str | None = None,
        until: str | None = None,
        failed_since: datetime | None = None,
    ) -> Steps[ReplayOut]:
        """Send again: one event, the events after one up to another, or everything that was given up since a time."""
        body = {"event": event, "after": after, "until": until, "failedSince": failed_since}
        return self._change(subscription_id, "replay", ReplayOut, body)

    def attempts(
        self, subscription_id: str, *, failed: bool = False, limit: int = 100
    ) -> Steps[list[DeliveryAttemptOut]]:
        """Return the newest attempts to deliver, newest first."""
        path = f"/subscriptions/{_quoted(subscription_id)}/attempts"
        query = {"failed": "true" if failed else None, "limit": limit}
        return (yield from self._get(path, DeliveryAttemptsOut, **query)).items

    def _change(
        self,
        subscription_id: str,
        verb: str,
        wanted: type[A],
        body: Mapping[str, object] | None = None,
        *,
        is_repeatable: bool = True,
    ) -> Steps[A]:
        path = f"/subscriptions/{_quoted(subscription_id)}/{verb}"
        given = {name: value for name, value in (body or {}).items() if value is not None}
        encoded = None if body is None else msgspec.json.encode(given)
        call = ClientCall("POST", path, [], encoded, is_repeatable=is_repeatable)
        return decode((yield from self.retry.call(call)), wanted)

    # ---- nonce service, for callers that send their transactions themselves

    def allocate_nonces(
        self, address: str, *, count: int = 1, hold_for_s: float | None = None, chain_id: int | None = None
    ) -> Steps[NoncesOut]:
        """Hold nonces, released ones first; each comes with the token that the mark methods need.

        An allocation has no id, so it is not repeated once a node may have received it: it raises `Unreachable` with
        `sent` true, or `Unavailable`. Nonces that were held all the same are released when their hold expires.
        """
        request = AllocateIn(count=count, hold_for_s=hold_for_s)
        call = ClientCall(
            "POST",
            f"/nonces/{_quoted(address)}",
            _pairs({"chainId": chain_id}),
            msgspec.json.encode(request),
            is_repeatable=False,
        )
        return decode((yield from self.retry.call(call)), NoncesOut)

    def nonce_status(self, address: str, *, chain_id: int | None = None) -> Steps[NonceStatusOut]:
        """Return how many nonces of a signer are held, submitted, consumed and released."""
        return self._get(f"/nonces/{_quoted(address)}", NonceStatusOut, chainId=chain_id)

    def mark_submitted(
        self, address: str, nonce: int, *, token: str, tx_hash: str, chain_id: int | None = None
    ) -> Steps[NonceOut]:
        """Report the transaction that uses the nonce. A node closes the nonce once that transaction is confirmed."""
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
        """Close the nonce: it is never allocated again."""
        return self._mark(address, nonce, "used", UsedIn(token=token, tx_hash=tx_hash), chain_id)

    def mark_recyclable(
        self, address: str, nonce: int, *, token: str, chain_id: int | None = None
    ) -> Steps[NonceOut]:
        """Release the nonce for another allocation: it was not and will not be used.

        If a response is lost and another caller holds the nonce at the next try, the call fails with `hold_lost`.
        """
        return self._mark(address, nonce, "recyclable", RecyclableIn(token=token), chain_id)

    # ---- internals

    def _mark(
        self, address: str, nonce: int, state: str, mark: msgspec.Struct, chain_id: int | None
    ) -> Steps[NonceOut]:
        # The token makes repetition safe: a mark that exists stays as it is, and no other hold is affected.
        path = f"/nonces/{_quoted(address)}/{_quoted(str(nonce))}/{state}"
        call = ClientCall("POST", path, _pairs({"chainId": chain_id}), msgspec.json.encode(mark))
        return decode((yield from self.retry.call(call)), NonceOut)

    def _get(self, path: str, response_type: type[A], **query: object) -> Steps[A]:
        return decode((yield from self.retry.call(ClientCall("GET", path, _pairs(query)))), response_type)

    def _command(
        self, path: str, options: CommandOptions, *, decision: Decision | None = None, **query: object
    ) -> Steps[CommandOut]:
        timeout_s = min(max(0.0, options.get("timeout_s", COMMAND_TIMEOUT_S)), float(MAX_WAIT_S))
        body = {"reason": options.get("reason"), "by": options.get("by"), "decision": decision}
        response = yield from self.retry.call(
            ClientCall(
                "POST",
                path,
                [*_pairs(query), ("timeout", f"{timeout_s:.3f}")],
                msgspec.json.encode({name: value for name, value in body.items() if value is not None}),
                is_repeatable=False,
                wait_s=timeout_s,
            )
        )
        return decode(response, CommandOut)


def _quoted(text: str) -> str:
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
        return error_from_problem(result.problem)
    return BadResponse("a result has neither a transaction nor a problem")


def _is_not_leader(result: TxOut | ClientError) -> bool:
    return isinstance(result, ClientError) and result.code == "not_leader"


def _with_request_id(result: TxOut | ClientError, request: TxRequest) -> TxOut | ClientError:
    return result.for_request(request.request_id) if isinstance(result, ClientError) else result

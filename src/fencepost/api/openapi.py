"""Build the OpenAPI 3.1 document from the table of operations and the schema types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fencepost.api.context import Operation
from fencepost.api.problems import KINDS
from fencepost.events.types import MEANINGS, EventType
from fencepost.schemas.events import EventOut
from fencepost.schemas.problem import Problem
from fencepost.schemas.requests import MAX_BATCH, AddressText, BatchEnvelope, HashText, NoQuery, TxRequest

_REF = "#/components/schemas/{name}"
_ALWAYS = ("query_invalid", "internal", "busy", "database_unavailable")
_GUARDED = (
    "key_missing",
    "key_invalid",
    "scope_missing",
    "signer_forbidden",
    "origin_refused",
    "proxy_refused",
    "auth_throttled",
    "rate_limited",
)
_WITH_BODY = (
    "json_malformed",
    "json_too_deep",
    "field_missing",
    "field_unknown",
    "field_invalid",
    "number_out_of_range",
    "address_invalid",
    "body_too_large",
    "media_type",
    "refused",
)
_PATH_TYPES: dict[str, Any] = {
    "tx_id": {"type": "string", "format": "uuid"},
    "subscription_id": {"type": "string", "format": "uuid"},
    "command_id": {"type": "string", "pattern": "^[0-9]{1,18}$"},
    "nonce": {"type": "string", "pattern": "^[0-9]{1,18}$"},
    "chain_id": {"type": "string", "pattern": "^[0-9]{1,19}$"},
}
_PUBLIC_NAMES = {
    "tx_id": "txId",
    "command_id": "commandId",
    "subscription_id": "subscriptionId",
    "chain_id": "chainId",
}
_PREFER = {
    "name": "Prefer",
    "in": "header",
    "description": "`wait=10` waits up to 10 seconds (RFC 7240).",
    "schema": {"type": "string"},
}
_IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Used as `requestId` if the body has none.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]*$"},
}
_LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "The id of the last event that was processed. Browsers send it when they reconnect.",
    "schema": {"type": "string", "maxLength": 100},
}
_TX_OPERATIONS = ("getTx", "cancelTx", "suspendTx", "resumeTx", "resubmitTx", "bumpTx")
_SUCCESS = {200: "Success.", 201: "Created.", 202: "Accepted; the milestone or outcome is not reached yet."}
_WEBHOOK_HEADERS = {
    "webhook-id": "The id of the event; the same for every attempt.",
    "webhook-timestamp": "The time of the attempt, in seconds since 1970.",
    "webhook-signature": "`v1,` and base64 of HMAC-SHA256 over `id.timestamp.body`; one per valid secret, separated by spaces.",
}
_LINK_TO_TX = {"parameters": {"txId": "$response.body#/txId"}}


def document(table: Sequence[Operation], *, version: str) -> dict[str, Any]:
    queries = {operation.query for operation in table} - {NoQuery}
    types: list[Any] = [
        Problem,
        TxRequest,
        AddressText,
        HashText,
        *sorted(queries, key=lambda one: one.__name__),
    ]
    for operation in table:
        types += [*operation.answers.values(), *([operation.body] if operation.body else [])]
    shapes, schemas = msgspec.json.schema_components(types, ref_template=_REF)
    paths: dict[str, Any] = {}
    inline = {"address": shapes[2], "hash": shapes[3], **_PATH_TYPES}
    for operation in table:
        path = operation.path
        for name, public in _PUBLIC_NAMES.items():
            path = path.replace(f"{{{name}}}", f"{{{public}}}")
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, schemas, inline)
    for query in queries:
        del schemas[query.__name__]
    _loosen_batch(schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Fencepost",
            "version": version,
            "description": "A transaction manager for EVM chains. Errors are RFC 9457 problems with a stable `code`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "webhooks": {kind.value: _webhook(kind) for kind in EventType},
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "bearerFormat": "fp_…"}},
        },
        "x-problems": {
            code: {"status": kind.status, "title": kind.title, "hint": kind.hint}
            for code, kind in KINDS.items()
        },
    }


def _webhook(kind: EventType) -> dict[str, Any]:
    """Describe an event as a request that a receiver gets. Its schema is the same as in `GET /events`."""
    schema = {
        "allOf": [
            {"$ref": _REF.format(name=EventOut.__name__)},
            {"properties": {"type": {"const": kind.value}}},
        ]
    }
    return {
        "post": {
            "operationId": f"on_{kind.value}",
            "summary": MEANINGS[kind],
            "tags": ["Events"],
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
            "parameters": [
                {
                    "name": name,
                    "in": "header",
                    "required": True,
                    "description": text,
                    "schema": {"type": "string"},
                }
                for name, text in _WEBHOOK_HEADERS.items()
            ],
            "responses": {
                "2XX": {
                    "description": "The event was processed. Every other answer is a failure, and is retried."
                },
                "410": {"description": "The subscription is disabled."},
            },
        }
    }


def _loosen_batch(schemas: dict[str, Any]) -> None:
    """Allow any JSON as an item of a batch: each invalid item gets its own problem."""
    schemas[BatchEnvelope.__name__]["properties"]["requests"] = {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_BATCH,
        "items": {"anyOf": [{"$ref": _REF.format(name=TxRequest.__name__)}, {}]},
    }


def _operation(operation: Operation, schemas: Mapping[str, Any], inline: Mapping[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.group],
        "parameters": _parameters(operation, schemas, inline),
        "responses": _responses(operation),
    }
    if operation.scopes:
        described["security"] = [{}, {"key": []}]
        described["description"] = f"Scope: {' or '.join(operation.scopes)}."
    if operation.body is not None:
        described["requestBody"] = {
            "required": operation.body_needed,
            "content": {"application/json": {"schema": {"$ref": _REF.format(name=operation.body.__name__)}}},
        }
    return described


def _parameters(
    operation: Operation, schemas: Mapping[str, Any], inline: Mapping[str, Any]
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": _PUBLIC_NAMES.get(name, name), "in": "path", "required": True, "schema": inline[name]}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    if operation.query is not NoQuery:
        query = schemas[operation.query.__name__]
        found += [
            {
                "name": name,
                "in": "query",
                "required": name in query["required"],
                "schema": _without_null(schema),
            }
            for name, schema in query["properties"].items()
        ]
        if "timeout" in query["properties"]:
            found.append(_PREFER)
    if operation.body is TxRequest:
        found.append(_IDEMPOTENCY)
    if operation.media_type == "text/event-stream":
        found.append(_LAST_EVENT_ID)
    return found


def _without_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Remove null from a parameter's type: a query can omit a parameter but not set it to null."""
    kept = {name: value for name, value in schema.items() if not (name == "default" and value is None)}
    options = [option for option in kept.pop("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        return {**kept, **options[0]}
    return {**kept, "anyOf": options} if options else kept


def _body_schema(operation: Operation, type_: type) -> dict[str, Any]:
    """Return the schema of a body; for a stream that of each block, whose data is JSON text. A heartbeat has no data."""
    schema = {"$ref": _REF.format(name=type_.__name__)}
    if operation.media_type != "text/event-stream":
        return schema
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "data": {"type": "string", "contentMediaType": "application/json", "contentSchema": schema},
        },
    }


def _responses(operation: Operation) -> dict[str, Any]:
    responses: dict[str, Any] = {
        str(status): {
            "description": _SUCCESS[status],
            "content": {operation.media_type: {"schema": _body_schema(operation, type_)}},
        }
        for status, type_ in operation.answers.items()
    }
    if operation.body is TxRequest:
        for response in responses.values():
            response["links"] = {name: _LINK_TO_TX | {"operationId": name} for name in _TX_OPERATIONS}
    codes = [*_ALWAYS, *operation.problems]
    codes += _GUARDED if operation.scopes else ()
    codes += _WITH_BODY if operation.body is not None else ()
    codes += ("field_invalid",) if "{" in operation.path else ()
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(KINDS[code].status, []).append(code)
    for status, listed in sorted(by_status.items()):
        responses[str(status)] = {
            "description": "; ".join(f"`{code}`: {KINDS[code].title}" for code in listed),
            "content": {"application/problem+json": {"schema": {"$ref": _REF.format(name=Problem.__name__)}}},
        }
    return responses

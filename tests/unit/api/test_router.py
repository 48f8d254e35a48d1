"""The router finds one endpoint by path and method, and rejects every other request with a problem."""

from __future__ import annotations

import pytest

from fencepost.api.pipeline import EncodedResponse
from fencepost.api.problems import ApiError
from fencepost.api.request import IncomingRequest
from fencepost.api.router import Endpoint, Router

PATHS = [
    ("GET", "/docs"),
    ("GET", "/tx"),
    ("POST", "/tx"),
    ("POST", "/tx/batch"),
    ("GET", "/tx/by-hash/{hash}"),
    ("GET", "/tx/{tx_id}"),
    ("POST", "/tx/{tx_id}/cancel"),
    ("DELETE", "/tx/{tx_id}/notes/{note}"),
]


def _endpoint() -> Endpoint:
    async def endpoint(_request: IncomingRequest) -> EncodedResponse:
        raise NotImplementedError

    return endpoint


@pytest.fixture
def endpoints() -> dict[tuple[str, str], Endpoint]:
    return {route: _endpoint() for route in PATHS}


@pytest.fixture
def router(endpoints: dict[tuple[str, str], Endpoint]) -> Router:
    router = Router()
    for (method, path), endpoint in endpoints.items():
        router.add(method, path, endpoint)
    return router


@pytest.mark.parametrize(
    ("method", "path", "found", "params"),
    [
        ("GET", "/docs", "/docs", {}),
        ("HEAD", "/docs", "/docs", {}),
        ("POST", "/tx", "/tx", {}),
        ("POST", "/tx/batch", "/tx/batch", {}),
        ("GET", "/tx/7", "/tx/{tx_id}", {"tx_id": "7"}),
        ("GET", "/tx/batch", "/tx/{tx_id}", {"tx_id": "batch"}),
        ("GET", "/tx/a b\u00fc", "/tx/{tx_id}", {"tx_id": "a b\u00fc"}),
        ("GET", "/tx/{tx_id}", "/tx/{tx_id}", {"tx_id": "{tx_id}"}),
        ("GET", "/tx/by-hash/0x1", "/tx/by-hash/{hash}", {"hash": "0x1"}),
        ("GET", "/tx/by-hash/cancel", "/tx/by-hash/{hash}", {"hash": "cancel"}),
        ("POST", "/tx/by-hash/cancel", "/tx/{tx_id}/cancel", {"tx_id": "by-hash"}),
        ("DELETE", "/tx/1/notes/2", "/tx/{tx_id}/notes/{note}", {"tx_id": "1", "note": "2"}),
    ],
)
def test_the_endpoint_and_its_parameters_are_found(
    *,
    router: Router,
    endpoints: dict[tuple[str, str], Endpoint],
    method: str,
    path: str,
    found: str,
    params: dict[str, str],
) -> None:
    endpoint, given = router.find(method, path)
    assert endpoint is endpoints["GET" if method == "HEAD" else method, found]
    assert given == params


@pytest.mark.parametrize(
    "path", ["", "/", "/tx/", "//tx", "/TX", "/docs/", "/tx/1/", "/tx//cancel", "/tx/1/2/3/4/5", "*", "tx"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_an_unknown_path_is_not_found(router: Router, method: str, path: str) -> None:
    with pytest.raises(ApiError) as raised:
        router.find(method, path)
    assert raised.value.code == "not_found"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/tx", "GET, HEAD, POST"),
        ("OPTIONS", "/docs", "GET, HEAD"),
        ("DELETE", "/tx/batch", "GET, HEAD, POST"),
        ("HEAD", "/tx/1/cancel", "POST"),
        ("PATCH", "/tx/by-hash/cancel", "GET, HEAD, POST"),
        ("get", "/tx", "GET, HEAD, POST"),
    ],
)
def test_another_method_is_rejected_with_those_of_the_path(
    router: Router, method: str, path: str, allowed: str
) -> None:
    with pytest.raises(ApiError) as raised:
        router.find(method, path)
    assert (raised.value.code, raised.value.headers["Allow"]) == ("method_not_allowed", allowed)


def test_a_long_path_is_cut_in_the_message(router: Router) -> None:
    with pytest.raises(ApiError) as raised:
        router.find("GET", "/" + "x" * 60_000)
    assert len(raised.value.problem.detail) < 300


def test_two_endpoints_for_one_route_are_a_mistake(router: Router) -> None:
    with pytest.raises(ValueError, match="two endpoints"):
        router.add("GET", "/tx/{tx_id}", _endpoint())

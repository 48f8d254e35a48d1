"""Run the `fencepost` command with uvicorn's httptools protocol: `python -m lab.bench.uvicorn_node …`. For the benchmark only.

It has no connection limits and no deadlines: the benchmark compares what the protocols cost.
"""

from __future__ import annotations

import runpy
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fencepost.api.pipeline import EncodedResponse
from fencepost.http import server

MODULE = "lab.bench.uvicorn_node"


def _protocol(*arguments: Any, table: object, allow_websockets: bool, **more: Any) -> HttpToolsProtocol:  # noqa: ARG001 - the arguments of `HttpConnection`
    """Create uvicorn's protocol, without what only Fencepost's protocol takes."""
    return HttpToolsProtocol(*arguments, **more)


def _install() -> None:
    """Replace the protocol, and add the header that Fencepost's protocol adds itself."""
    encoded_headers = EncodedResponse.encoded_headers

    def with_length(response: EncodedResponse) -> list[tuple[bytes, bytes]]:
        return [*encoded_headers(response), (b"content-length", b"%d" % len(response.body))]

    setattr(EncodedResponse, "encoded_headers", with_length)  # noqa: B010 - mypy allows no assignment to a method
    setattr(server, "HttpConnection", _protocol)  # noqa: B010 - mypy rejects the plain assignment


if __name__ == "__main__":
    _install()
    runpy.run_module("fencepost", run_name="__main__", alter_sys=True)

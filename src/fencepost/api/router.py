"""Find the endpoint of a request by its path and method.

A path without parameters is found in a dictionary. A template such as `/api/v1/tx/{tx_id}` is compared segment by
segment; a parameter matches one segment that is not empty. If several paths match, the one without parameters has
precedence, then the template that was added first. HEAD is served as GET.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from fencepost.api.context import StreamResponse
from fencepost.api.pipeline import EncodedResponse
from fencepost.api.problems import ApiError
from fencepost.api.request import IncomingRequest

MAX_SHOWN_PATH_CHARS = 200

Endpoint = Callable[[IncomingRequest], Awaitable[EncodedResponse | StreamResponse]]
_NO_PARAMS: Mapping[str, str] = MappingProxyType({})


class MethodNotAllowed(ApiError):
    """The path exists, but not with this method."""

    def __init__(self, path: str, method: str, allowed: set[str]) -> None:
        super().__init__(
            "method_not_allowed", f"{path[:MAX_SHOWN_PATH_CHARS]} does not support {method[:20]}"
        )
        self.allow = ", ".join(sorted(allowed | ({"HEAD"} if "GET" in allowed else set())))

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "Allow": self.allow}


class _Template(NamedTuple):
    segments: tuple[str, ...]
    by_method: dict[str, Endpoint]

    def match(self, segments: list[str]) -> dict[str, str] | None:
        """Return the parameters, or None if the path does not match. Both have the same number of segments."""
        params = {}
        for wanted, given in zip(self.segments, segments, strict=True):
            if wanted[:1] == "{":
                if not given:
                    return None
                params[wanted[1:-1]] = given
            elif wanted != given:
                return None
        return params


class Router:
    def __init__(self) -> None:
        self._exact: dict[str, dict[str, Endpoint]] = {}
        self._templates: defaultdict[int, list[_Template]] = defaultdict(list)  # by the number of segments

    def add(self, method: str, path: str, endpoint: Endpoint) -> None:
        by_method = self._methods_of(path)
        if method in by_method:
            raise ValueError(f"there are two endpoints for {method} {path}")
        by_method[method] = endpoint

    def _methods_of(self, path: str) -> dict[str, Endpoint]:
        if "{" not in path:
            return self._exact.setdefault(path, {})
        segments = tuple(path.split("/"))
        templates = self._templates[len(segments)]
        for template in templates:
            if template.segments == segments:
                return template.by_method
        templates.append(_Template(segments, {}))
        return templates[-1].by_method

    def find(self, method: str, path: str) -> tuple[Endpoint, Mapping[str, str]]:
        """Return the endpoint and the path parameters; raise the problem `not_found` or `method_not_allowed`."""
        wanted = "GET" if method == "HEAD" else method
        allowed: set[str] = set()
        for by_method, params in self._matches(path):
            endpoint = by_method.get(wanted)
            if endpoint is not None:
                return endpoint, params
            allowed.update(by_method)
        if allowed:
            raise MethodNotAllowed(path, method, allowed)
        raise ApiError("not_found", f"there is no path {path[:MAX_SHOWN_PATH_CHARS]}")

    def _matches(self, path: str) -> Iterator[tuple[dict[str, Endpoint], Mapping[str, str]]]:
        by_method = self._exact.get(path)
        if by_method is not None:
            yield by_method, _NO_PARAMS
        segments = path.split("/")
        for template in self._templates.get(len(segments), ()):
            params = template.match(segments)
            if params is not None:
                yield template.by_method, params

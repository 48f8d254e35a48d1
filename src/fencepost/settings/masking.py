"""Validate database and endpoint URLs, and mask their secrets.

A masked URL shows scheme, host and port, and the name of a database; never user, password or query, nor the path of an
endpoint's URL, where providers put API keys. If the end of the host is ambiguous (an unencoded `/`, `?` or `#` in a
password moves it), only the scheme is shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

HIDDEN = "***"
_MAX_URL_LENGTH = 2048
_MAX_PORT = 65535
_HOST = re.compile(r"([A-Za-z0-9._-]*|\[[0-9A-Fa-f:.%]+\])(?::([0-9]{1,5}))?")
_DATABASE_SCHEMES = ("postgresql", "postgres")


def check_dsn(dsn: str) -> None:
    """Raise ValueError unless it is a PostgreSQL URL; several hosts, separated by commas, are allowed."""
    parts = _split(dsn, schemes=_DATABASE_SCHEMES)
    if "@" in parts.path:
        raise ValueError("an unencoded character in the password")
    for host in _hosts(parts).split(","):
        _check_host(host)


def check_url(url: str, *, schemes: Sequence[str]) -> None:
    """Raise ValueError unless it is a URL with a host and one of the schemes."""
    parts = _split(url, schemes=schemes)
    _check_host(_hosts(parts))
    if not parts.hostname:
        raise ValueError("no host")


def mask_dsn(dsn: str) -> str:
    """Mask user, password and query of a database URL."""
    try:
        check_dsn(dsn)
        parts = _split(dsn, schemes=_DATABASE_SCHEMES)
    except ValueError:
        return HIDDEN
    if _is_ambiguous(parts):
        return f"{parts.scheme}://{HIDDEN}"
    query = f"?{HIDDEN}" if parts.query else ""
    return f"{parts.scheme}://{_user(parts)}{_hosts(parts)}{parts.path}{query}"


def mask_url(url: str) -> str:
    """Mask user, password, path and query of a URL."""
    try:
        parts = _split(url, schemes=())
        _check_host(_hosts(parts))
    except ValueError:
        return HIDDEN
    if _is_ambiguous(parts):
        return f"{parts.scheme}://{HIDDEN}"
    rest = f"/{HIDDEN}" if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{_user(parts)}{_hosts(parts)}{rest}"


def _split(url: str, *, schemes: Sequence[str]) -> SplitResult:
    # Reject control characters first: urlsplit silently drops some of them.
    if len(url) > _MAX_URL_LENGTH or not url.isprintable() or " " in url or "://" not in url:
        raise ValueError("not a URL")
    parts = urlsplit(url)
    if "#" in url or not parts.scheme or (schemes and parts.scheme not in schemes):
        raise ValueError("another scheme, or a fragment")
    return parts


def _hosts(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def _user(parts: SplitResult) -> str:
    return f"{HIDDEN}@" if "@" in parts.netloc else ""


def _check_host(host: str) -> None:
    written = _HOST.fullmatch(host)
    if written is None or int(written[2] or 0) > _MAX_PORT:
        raise ValueError("not HOST or HOST:PORT")


def _is_ambiguous(parts: SplitResult) -> bool:
    return "@" in parts.path or "@" in parts.query

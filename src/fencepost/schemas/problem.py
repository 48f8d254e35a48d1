"""Define the RFC 9457 problem, which is the body of every error response."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class Problem(msgspec.Struct, rename="camel", kw_only=True):
    """An RFC 9457 problem. `code` is for programs, `detail` and `hint` are for people."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str | UnsetType = UNSET
    field: str | UnsetType = UNSET
    owner: str | UnsetType = UNSET
    owner_url: str | UnsetType = UNSET
    tx_id: str | UnsetType = UNSET
    id: str | UnsetType = UNSET

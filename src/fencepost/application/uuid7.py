"""Generate transaction ids: UUIDs of version 7 (RFC 9562), which increase with time.

Rows that are created together are close together in the indexes over their ids. Random bits keep the ids of different
processes apart. Lists show the newest first by id; `seq`, not the id, orders the work of a signer.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from uuid_utils.compat import uuid7

new_tx_id: Callable[[], UUID] = uuid7

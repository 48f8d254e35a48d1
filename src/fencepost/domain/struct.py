"""Define the base class of the domain's values: immutable, and compared by their fields.

One transaction creates about thirty of them and reads their fields hundreds of times. `msgspec.Struct` creates, copies and
compares in C: creating a named tuple takes three to six times as long, and reading one twice as long. The domain uses
nothing else of msgspec: adapters encode values.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec

# Return a copy with some fields replaced.
changed = msgspec.structs.replace


# No value ever contains itself, so the garbage collector need not track them.
class Struct(msgspec.Struct, frozen=True, gc=False):
    def changed(self, **changes: Any) -> Self:
        """Return a copy with some fields replaced. The function `changed` does the same four times as fast."""
        return changed(self, **changes)

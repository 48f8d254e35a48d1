"""The front door over HTTP. Read in this order: `operations` (what there is), `app` (how a call goes through), then one
module a subject. It knows the use cases and the ports; what stands behind them comes in as `Services`.

    request → app.answer → gate (who is it, may it) → bodies (is it well-formed) → tx | look | people | system → problem or answer
"""

from fencepost.api.app import create_app
from fencepost.api.gate import require_keys
from fencepost.api.services import NodeInfo, Services

__all__ = ["NodeInfo", "Services", "create_app", "require_keys"]

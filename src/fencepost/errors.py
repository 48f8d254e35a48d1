"""Every error Fencepost raises, in one tree.

FencepostError
├── UsageError            the caller can mend it: exit code 2, HTTP 4xx
│   ├── SettingError      a setting is unknown, malformed or out of range
│   ├── InvalidRequest    a field of a request is wrong
│   ├── RequestConflict   the request id is known, with another payload
│   ├── UnknownSigner     no key is configured for that signer
│   ├── SignerProtected   the signer waits for a person's decision
│   ├── SignerElsewhere   the signer belongs to the core, or to the nonce service: never to both
│   ├── HoldLost          the hold of a nonce is over: it may be somebody else's by now
│   └── NonceConflict     the nonce has another transaction than the one named
├── Unready              something around us is not as it must be: exit code 2, nothing half-made
│   ├── DatabaseUnusable  unreachable, too old, no rights
│   ├── MigrationError    a migration was changed, is missing, or failed
│   ├── ChainUnusable     RPC unreachable, or another chain than the settings say
│   ├── EmbeddedError     the embedded PostgreSQL or dev chain can't be had
│   └── NonceUnavailable  no nonce can be given right now: nothing was given, ask again
├── RpcError              a call to a node had no usable answer
│   ├── RpcUnavailable    no answer, or not from a node: the outcome is unknown
│   └── RpcRefused        the node answered with an error
│       └── InsufficientFunds   the account can't pay for the call
├── WouldRevert           a dry run says that the transaction reverts
├── SigningError          the key port could not sign
├── Overloaded            too much waits already: the same call may succeed later
├── Stopping              this node is on its way out: ask another one, or again soon
├── Fenced                this term is over: stop the lane, write nothing more
└── NotLeader             another node holds the signer's lease

A result that is an everyday outcome (what a node said to a send, a request that was already known) is a value, not
an exception. Messages never contain secrets: keys, passwords, URLs with credentials.
"""

from __future__ import annotations


class FencepostError(Exception):
    """The root: catch this to catch everything of ours."""

    code = "error"


class UsageError(FencepostError):
    code = "usage"


class SettingError(UsageError):
    code = "setting_invalid"


class InvalidRequest(UsageError):
    code = "request_invalid"

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class RequestConflict(UsageError):
    code = "request_conflict"


class UnknownSigner(UsageError):
    code = "signer_unknown"


class SignerProtected(UsageError):
    code = "signer_protected"


class SignerElsewhere(UsageError):
    code = "signer_elsewhere"


class HoldLost(UsageError):
    code = "hold_lost"


class NonceConflict(UsageError):
    code = "nonce_conflict"


class Unready(FencepostError):
    code = "environment"


class DatabaseUnusable(Unready):
    code = "database_unusable"


class MigrationError(Unready):
    code = "migration"


class ChainUnusable(Unready):
    code = "chain_unusable"


class EmbeddedError(Unready):
    code = "embedded_unavailable"


class NonceUnavailable(Unready):
    code = "nonce_unavailable"


class RpcError(FencepostError):
    code = "rpc"


class RpcUnavailable(RpcError):
    code = "rpc_unavailable"


class RpcRefused(RpcError):
    code = "rpc_refused"

    def __init__(self, message: str, *, rpc_code: int | None = None, data: object = None) -> None:
        super().__init__(message)
        self.rpc_code = rpc_code
        self.data = data


class InsufficientFunds(RpcRefused):
    code = "insufficient_funds"


class WouldRevert(FencepostError):
    code = "would_revert"


class SigningError(FencepostError):
    code = "signing"


class Stopping(FencepostError):
    code = "stopping"


class Overloaded(FencepostError):
    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Fenced(FencepostError):
    code = "fenced"


class NotLeader(FencepostError):
    code = "not_leader"

    def __init__(self, message: str, *, owner: str | None = None) -> None:
        super().__init__(message)
        self.owner = owner

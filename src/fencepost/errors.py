"""Define every error that Fencepost raises, in one tree.

FencepostError
├── UsageError            the caller can correct it: exit code 2, HTTP 4xx
│   ├── SettingError      a setting is unknown, malformed or out of range
│   ├── InvalidRequest    a field of a request is wrong
│   ├── RequestConflict   the request id is known, with another payload
│   ├── UnknownSigner     no key is configured for that signer
│   ├── SignerProtected   the signer waits for an operator's decision
│   ├── SignerUsedOtherwise  the signer belongs to the core, or to the nonce service: never to both
│   ├── HoldLost          the hold of a nonce has expired: another caller may hold it now
│   └── NonceConflict     the nonce has another transaction than the one named
├── Unready               a service that the process needs is not usable: exit code 2, nothing is half done
│   ├── DatabaseUnusable  unreachable, too old, no rights
│   ├── MigrationError    a migration was changed, is missing, or failed
│   ├── ChainUnusable     RPC unreachable, or another chain than the settings or the database say
│   │   └── ChainSilent       no endpoint answers
│   ├── EmbeddedError     the embedded PostgreSQL or dev chain can't be started
│   └── NonceUnavailable  no nonce can be allocated now: nothing was allocated, retry
├── RpcError              a call to an endpoint had no usable response
│   ├── RpcUnavailable    no response, or not from a chain node: the outcome is unknown
│   │   └── WrongChain        the endpoint serves another chain
│   │       └── ChainReplaced     every endpoint serves a chain with the same id and another first block
│   └── RpcRefused        the endpoint answered with an error
│       ├── InsufficientFunds   the account can't pay for the call
│       └── TypeNotSupported    the chain does not know transactions of this type
├── WouldRevert           the dry run of the transaction reverts
├── SigningError          the key port could not sign
│   └── SigningRefused    the signing service rejected the transaction
├── Overloaded            admission control rejected the call: it may succeed later
├── Stopping              this node is shutting down: call another node, or retry soon
├── Fenced                this term has ended: stop the lane, write nothing more
└── NotLeader             another node holds the signer's lease

An expected outcome (an endpoint's response to a send, a request that is already known) is a value, not an exception.
Messages never contain secrets: keys, passwords, URLs with credentials.
"""

from __future__ import annotations


class FencepostError(Exception):
    """Base class of all errors of Fencepost."""

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


class SignerUsedOtherwise(UsageError):
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


class ChainSilent(ChainUnusable):
    pass


class EmbeddedError(Unready):
    code = "embedded_unavailable"


class NonceUnavailable(Unready):
    code = "nonce_unavailable"


class FeeSourceError(FencepostError):
    """Report that a gas station gave no usable price."""

    code = "fee_source"


class RpcError(FencepostError):
    code = "rpc"


class RpcUnavailable(RpcError):
    code = "rpc_unavailable"


class WrongChain(RpcUnavailable):
    code = "wrong_chain"


class ChainReplaced(WrongChain):
    """Every endpoint serves a replaced chain; `seen_for_s` is how long every check has shown that."""

    code = "chain_replaced"

    def __init__(self, message: str, *, seen_for_s: float = 0.0) -> None:
        super().__init__(message)
        self.seen_for_s = seen_for_s


class RpcRefused(RpcError):
    code = "rpc_refused"

    def __init__(self, message: str, *, rpc_code: int | None = None, data: object = None) -> None:
        super().__init__(message)
        self.rpc_code = rpc_code
        self.data = data


class InsufficientFunds(RpcRefused):
    code = "insufficient_funds"


class TypeNotSupported(RpcRefused):
    code = "type_not_supported"


class Unsendable(InvalidRequest):
    """No endpoint would accept the transaction; `node_text` is the message of the endpoints."""

    def __init__(self, message: str, *, field: str, node_text: str) -> None:
        super().__init__(message, field=field)
        self.node_text = node_text


class WouldRevert(FencepostError):
    code = "would_revert"


class SigningError(FencepostError):
    code = "signing"


class SigningRefused(SigningError):
    code = "signing_refused"


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

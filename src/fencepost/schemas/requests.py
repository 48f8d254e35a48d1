"""Define the request types: bodies and queries. The OpenAPI document is generated from them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fencepost.application.accept import MAX_DATA_BYTES, MAX_REQUEST_ID
from fencepost.application.queries import MAX_PAGE_SIZE, Part
from fencepost.application.tx_waiter import Milestone
from fencepost.domain.states import State, SubState
from fencepost.nonce.port import MAX_HOLD_S
from fencepost.nonce.port import MAX_NONCES_PER_CALL as MAX_NONCES

MAX_BATCH = 1_000
MAX_TAGS = 20
MAX_WAIT_S = 120
MAX_CHAIN_ID = 2**63 - 37

AddressText = Annotated[
    str,
    Meta(
        pattern="^0[xX][0-9a-fA-F]{40}$",
        max_length=42,  # `$` also matches before a line break at the end
        description="0x and 40 hex digits. A mixed-case address must have a valid EIP-55 checksum.",
        examples=["0x70997970c51812dc3a010c7d01b50e0d17dc79c8"],
    ),
]
HashText = Annotated[
    str, Meta(pattern="^0[xX][0-9a-fA-F]{64}$", max_length=66, description="0x and 64 hex digits.")
]
ChainId = Annotated[
    int, Meta(ge=1, le=MAX_CHAIN_ID, description="The chain id. Default: the node's default chain.")
]
RequestId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_REQUEST_ID,
        description="The caller's idempotency key. A repeated request with the same id returns the same transaction.",
        examples=["order-7"],
    ),
]
Tag = Annotated[str, Meta(min_length=1, max_length=100, pattern="^[^,]*$")]
Quantity = (
    Annotated[int, Meta(ge=0, description="A whole number.")]
    | Annotated[
        str,
        Meta(
            pattern="^(0x[0-9a-fA-F]{1,64}|[0-9]{1,78})$",
            description="A whole number as decimal or 0x-prefixed hex text.",
        ),
    ]
)
Reason = Annotated[
    str,
    Meta(
        min_length=1, max_length=1000, description="The reason for the command. It is stored in the journal."
    ),
]
By = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=100,
        description="The name of the operator. It is stored together with the name of the API key.",
    ),
]


class _In(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    pass


FeeTierName = Literal["slow", "normal", "fast", "urgent"]


class FeesIn(_In):
    """EIP-1559 fees in wei per gas."""

    max_fee_per_gas: Quantity
    max_priority_fee_per_gas: Quantity


class AccessEntryIn(_In):
    address: AddressText
    storage_keys: Annotated[list[HashText], Meta(max_length=1000)] = []


class Payload(_In):
    """The transaction to send. Give calldata as `data`, or as `method` with `args`. Without `to` it deploys a contract."""

    to: (
        Annotated[
            str,
            Meta(
                pattern="^(0[xX][0-9a-fA-F]{40})?$",
                max_length=42,
                description="The receiver. If it is empty or missing, `data` is deployed as a contract.",
            ),
        ]
        | None
    ) = None
    data: (
        Annotated[
            str,
            Meta(
                pattern="^(0x([0-9a-fA-F]{2})*)?$",
                max_length=2 + 2 * MAX_DATA_BYTES,
                description="Calldata, or the contract code to deploy, in hex.",
            ),
        ]
        | None
    ) = None
    abi: (
        Annotated[
            list[Any], Meta(description="The contract's JSON ABI, or only the entries that the call uses.")
        ]
        | None
    ) = None
    method: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=2000,
                description="A function signature, or a function name if `abi` is given.",
                examples=["transfer(address,uint256)"],
            ),
        ]
        | None
    ) = None
    args: Annotated[list[Any], Meta(description="The arguments of the method or the constructor.")] | None = (
        None
    )
    value: Annotated[Quantity, Meta(description="The amount to transfer, in wei.")] = 0
    gas: (
        Annotated[Quantity, Meta(description="The gas limit. Default: an estimate by the chain's endpoint.")]
        | None
    ) = None
    fees: FeesIn | None = None
    gas_price: (
        Annotated[Quantity, Meta(description="The fee per gas in wei, for types 0 and 1. Excludes `fees`.")]
        | None
    ) = None
    fee_tier: (
        Annotated[
            FeeTierName,
            Meta(
                description="Which of the suggested prices it pays. Default: that of the signer. Excludes a price."
            ),
        ]
        | None
    ) = None
    type: (
        Annotated[Literal[0, 1, 2, "0x0", "0x1", "0x2"], Meta(description="The EIP-2718 transaction type.")]
        | None
    ) = None
    access_list: Annotated[list[AccessEntryIn], Meta(max_length=1000)] | None = None


class TxRequest(_In):
    """A transaction to submit. `submitter` is an alias of `signer`; one of them is required."""

    payload: Payload
    signer: AddressText | None = None
    submitter: AddressText | None = None
    request_id: RequestId | None = None
    chain_id: ChainId | None = None
    valid_until: (
        Annotated[
            datetime,
            Meta(
                tz=True,
                description="The transaction is dropped if it has no nonce by this time. RFC 3339 with a time zone.",
            ),
        ]
        | None
    ) = None
    tags: Annotated[list[Tag], Meta(max_length=MAX_TAGS)] = []


class BatchEnvelope(_In):
    """A batch of requests. Each is checked separately: an invalid request does not affect the others."""

    requests: Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=MAX_BATCH)]


class BatchIn(_In):
    """A batch in which every request is well-formed."""

    requests: Annotated[list[TxRequest], Meta(min_length=1, max_length=MAX_BATCH)]


class CommandIn(_In):
    reason: Reason | None = None
    by: By | None = None


class UnprotectIn(_In):
    """An operator's decision about the nonce, with its reason.

    `adopt` continues from the chain's nonce, `keep` from Fencepost's cursor, `fill` from the cursor after fillers have
    closed the nonce gap below it.
    """

    decision: Literal["adopt", "keep", "fill"]
    reason: Reason
    by: By | None = None


class PolicyIn(_In):
    """The spending policy of a signer. A missing field sets no limit. With receivers or selectors it may not deploy."""

    receivers: Annotated[list[AddressText], Meta(max_length=1000)] | None = None
    selectors: (
        Annotated[
            list[Annotated[str, Meta(min_length=2, max_length=2000)]],
            Meta(
                max_length=1000,
                description="Each is 0x and 8 hex digits, a function signature, or 0x for a plain transfer.",
            ),
        ]
        | None
    ) = None
    value_wei_max: Quantity | None = None
    daily_wei_max: (
        Annotated[
            Quantity,
            Meta(
                description="The limit of value plus gas cost per UTC day. A transaction counts with gas limit times fee cap "
                "until its receipt shows the actual cost."
            ),
        ]
        | None
    ) = None
    gas_max: Annotated[Quantity, Meta(description="The highest gas limit per transaction.")] | None = None
    fee_cap_max: Annotated[Quantity, Meta(description="The highest fee per gas, in wei.")] | None = None


# ---- queries


class NoQuery(_In):
    pass


WaitFor = Annotated[
    Literal["allocated", "submitted", "mined", "finished", "confirmed"],
    Meta(
        description="Respond when the transaction has reached this milestone, or when `timeout` is over. `finished` means"
        " CONFIRMED, FAILED or CANCELLED. `confirmed` is the same milestone: it also returns a failed transaction, so"
        " check `state`."
    ),
]
WaitTimeout = Annotated[
    float,
    Meta(
        ge=0,
        le=MAX_WAIT_S,
        description="The longest wait in seconds. The header `Prefer: wait=…` has the same effect.",
    ),
]


class WaitQuery(_In):
    wait: WaitFor | None = None
    timeout: WaitTimeout | None = None


class TimeoutQuery(_In):
    timeout: WaitTimeout | None = None


Include = Annotated[
    list[Part], Meta(description="Additional parts to return, separated by commas or repeated.")
]


class IncludeQuery(_In):
    include: Include = []


class GetQuery(_In):
    include: Include = []
    wait: WaitFor | None = None
    timeout: WaitTimeout | None = None


Submitter = Annotated[AddressText, Meta(description="An alias of `signer`.")]


class ByRequestQuery(_In):
    """Query for one transaction. One of `signer` and `submitter` is required."""

    request_id: RequestId
    signer: AddressText | None = None
    submitter: Submitter | None = None
    chain_id: ChainId | None = None
    include: Include = []


class ByHashQuery(_In):
    chain_id: ChainId | None = None
    include: Include = []


Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE_SIZE, description="The largest number of items to return.")]
Cursor = Annotated[str, Meta(min_length=1, max_length=100, description="`next` of the previous page.")]


class ListQuery(_In):
    signer: Annotated[list[AddressText], Meta(max_length=50)] = []
    submitter: Annotated[list[AddressText], Meta(max_length=50, description="An alias of `signer`.")] = []
    chain_id: ChainId | None = None
    state: list[State] = []
    sub_state: list[SubState] = []
    created_from: Annotated[datetime, Meta(tz=True)] | None = None
    created_before: Annotated[datetime, Meta(tz=True)] | None = None
    tag: Annotated[
        list[Tag], Meta(max_length=MAX_TAGS, description="Only transactions that have all of these tags.")
    ] = []
    include: Include = []
    limit: Limit = 100
    cursor: Cursor | None = None


class CompletionsQuery(_In):
    after: Annotated[
        str, Meta(max_length=100, description="`next` of the previous response. Empty: from the beginning.")
    ] = ""
    limit: Limit = 100


class SignersQuery(_In):
    limit: Limit = 100
    cursor: Cursor | None = None


class SignerQuery(_In):
    chain_id: ChainId | None = None


class SignerCommandQuery(_In):
    chain_id: ChainId | None = None
    timeout: WaitTimeout | None = None


MILESTONES: dict[str, Milestone] = {
    name.lower(): milestone for name, milestone in Milestone.__members__.items()
}


HoldToken = Annotated[
    str,
    Meta(
        pattern="^[0-9a-f]{32}$",
        max_length=32,
        description="The token that was returned with the nonce. It proves that the caller holds it.",
    ),
]


class AllocateIn(_In):
    """The number of nonces to allocate, and how long to hold them."""

    count: Annotated[int, Meta(ge=1, le=MAX_NONCES, description="The number of nonces.")] = 1
    hold_for_s: (
        Annotated[
            float, Meta(gt=0, le=MAX_HOLD_S, description="The shortest time to hold the nonces, in seconds.")
        ]
        | None
    ) = None


class SubmittedIn(_In):
    token: HoldToken
    tx_hash: HashText


class UsedIn(_In):
    token: HoldToken
    tx_hash: HashText | None = None


class RecyclableIn(_In):
    token: HoldToken

"""What callers send: the types are the contract, and the OpenAPI document is made of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fencepost.application.accept import MOST_DATA_BYTES, MOST_REQUEST_ID
from fencepost.application.read import MOST_A_PAGE, Part
from fencepost.application.waiting import Milestone
from fencepost.domain.states import State, SubState
from fencepost.nonce.port import HOLD_S_MAX
from fencepost.nonce.port import MOST_AT_ONCE as MOST_NONCES

MOST_BATCH = 1_000
MOST_TAGS = 20
MOST_WAIT_S = 120
MOST_CHAIN_ID = 2**63 - 37

AddressText = Annotated[
    str,
    Meta(
        pattern="^0[xX][0-9a-fA-F]{40}$",
        description="0x and 40 hex digits; in mixed case the EIP-55 checksum must hold.",
        examples=["0x70997970c51812dc3a010c7d01b50e0d17dc79c8"],
    ),
]
HashText = Annotated[str, Meta(pattern="^0[xX][0-9a-fA-F]{64}$", description="0x and 64 hex digits.")]
ChainId = Annotated[
    int, Meta(ge=1, le=MOST_CHAIN_ID, description="Which chain; without it the node's default chain.")
]
RequestId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MOST_REQUEST_ID,
        description="The caller's own name of the request: whoever sends it again gets the same transaction.",
        examples=["order-7"],
    ),
]
Tag = Annotated[str, Meta(min_length=1, max_length=100, pattern="^[^,]*$")]
Quantity = (
    Annotated[int, Meta(ge=0, description="A whole number.")]
    | Annotated[
        str,
        Meta(pattern="^(0x[0-9a-fA-F]{1,64}|[0-9]{1,78})$", description="The same in decimal or 0x text."),
    ]
)
Reason = Annotated[str, Meta(min_length=1, max_length=1000, description="Why, for those who read it later.")]
By = Annotated[str, Meta(min_length=1, max_length=100, description="Who asks, besides the key.")]


class _In(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    pass


class FeesIn(_In):
    """EIP-1559 prices in wei a gas."""

    max_fee_per_gas: Quantity
    max_priority_fee_per_gas: Quantity


class AccessEntryIn(_In):
    address: AddressText
    storage_keys: Annotated[list[HashText], Meta(max_length=1000)] = []


class Payload(_In):
    """What the chain shall do. Calldata comes as `data`, or as `method` with `args`; without `to` it deploys."""

    to: (
        Annotated[
            str,
            Meta(
                pattern="^(0[xX][0-9a-fA-F]{40})?$",
                description="The receiver; empty or missing deploys `data`.",
            ),
        ]
        | None
    ) = None
    data: (
        Annotated[
            str,
            Meta(
                pattern="^(0x([0-9a-fA-F]{2})*)?$",
                max_length=2 + 2 * MOST_DATA_BYTES,
                description="Calldata, or the code to deploy, in hex.",
            ),
        ]
        | None
    ) = None
    abi: (
        Annotated[list[Any], Meta(description="The contract's JSON ABI, or the entries that are needed.")]
        | None
    ) = None
    method: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=2000,
                description="A signature, or with `abi` a name.",
                examples=["transfer(address,uint256)"],
            ),
        ]
        | None
    ) = None
    args: Annotated[list[Any], Meta(description="The method's or the constructor's arguments.")] | None = None
    value: Annotated[Quantity, Meta(description="In wei.")] = 0
    gas: Annotated[Quantity, Meta(description="The gas limit; without it the node estimates.")] | None = None
    fees: FeesIn | None = None
    gas_price: (
        Annotated[Quantity, Meta(description="In wei, for types 0 and 1; instead of `fees`.")] | None
    ) = None
    type: Annotated[Literal[0, 1, 2, "0x0", "0x1", "0x2"], Meta(description="EIP-2718.")] | None = None
    access_list: Annotated[list[AccessEntryIn], Meta(max_length=1000)] | None = None


class TxRequest(_In):
    """A transaction to be sent. `submitter` is another name of `signer`; one of them is needed."""

    payload: Payload
    signer: AddressText | None = None
    submitter: AddressText | None = None
    request_id: RequestId | None = None
    chain_id: ChainId | None = None
    valid_until: (
        Annotated[
            datetime,
            Meta(tz=True, description="Without a nonce by then it is dropped; RFC 3339 with a zone."),
        ]
        | None
    ) = None
    tags: Annotated[list[Tag], Meta(max_length=MOST_TAGS)] = []


class BatchEnvelope(_In):
    """Each request is looked at by itself: one bad one does not harm the others."""

    requests: Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=MOST_BATCH)]


class BatchIn(_In):
    """The same, when all of them are well-formed."""

    requests: Annotated[list[TxRequest], Meta(min_length=1, max_length=MOST_BATCH)]


class WishIn(_In):
    reason: Reason | None = None
    by: By | None = None


class UnprotectIn(_In):
    """A person's decision, with why: go on from the chain's nonce, from ours, or from ours with the hole below filled."""

    decision: Literal["adopt", "keep", "fill"]
    reason: Reason
    by: By | None = None


class PolicyIn(_In):
    """What the signer may do; what is left out does not matter. With receivers or selectors it may not deploy."""

    receivers: Annotated[list[AddressText], Meta(max_length=1000)] | None = None
    selectors: (
        Annotated[
            list[Annotated[str, Meta(min_length=2, max_length=2000)]],
            Meta(
                max_length=1000, description="0x and 8 hex digits, a signature, or 0x for a plain transfer."
            ),
        ]
        | None
    ) = None
    value_wei_max: Quantity | None = None
    daily_wei_max: Annotated[Quantity, Meta(description="Value without gas, a day by UTC.")] | None = None


# ---- queries


class NoQuery(_In):
    pass


WaitFor = Annotated[
    Literal["allocated", "submitted", "mined", "confirmed"],
    Meta(description="Answer when this is reached, or at the end of `timeout`."),
]
WaitTimeout = Annotated[
    float, Meta(ge=0, le=MOST_WAIT_S, description="Seconds to wait; `Prefer: wait=…` says the same.")
]


class WaitQuery(_In):
    wait: WaitFor | None = None
    timeout: WaitTimeout | None = None


class TimeoutQuery(_In):
    timeout: WaitTimeout | None = None


Include = Annotated[list[Part], Meta(description="Also tell these; separated by commas or repeated.")]


class IncludeQuery(_In):
    include: Include = []


class GetQuery(_In):
    include: Include = []
    wait: WaitFor | None = None
    timeout: WaitTimeout | None = None


class ByRequestQuery(_In):
    signer: AddressText
    request_id: RequestId
    chain_id: ChainId | None = None
    include: Include = []


class ByHashQuery(_In):
    chain_id: ChainId | None = None
    include: Include = []


Limit = Annotated[int, Meta(ge=1, le=MOST_A_PAGE, description="How many at most.")]
Cursor = Annotated[str, Meta(min_length=1, max_length=100, description="`next` of the page before.")]


class ListQuery(_In):
    signer: Annotated[list[AddressText], Meta(max_length=50)] = []
    chain_id: ChainId | None = None
    state: list[State] = []
    sub_state: list[SubState] = []
    created_from: Annotated[datetime, Meta(tz=True)] | None = None
    created_before: Annotated[datetime, Meta(tz=True)] | None = None
    tag: Annotated[list[Tag], Meta(max_length=MOST_TAGS, description="All of them must be there.")] = []
    include: Include = []
    limit: Limit = 100
    cursor: Cursor | None = None


class CompletionsQuery(_In):
    after: Annotated[str, Meta(max_length=100, description="`next` of the answer before; empty begins.")] = ""
    limit: Limit = 100


class SignersQuery(_In):
    limit: Limit = 100
    cursor: Cursor | None = None


class SignerQuery(_In):
    chain_id: ChainId | None = None


class SignerWishQuery(_In):
    chain_id: ChainId | None = None
    timeout: WaitTimeout | None = None


MILESTONES: dict[str, Milestone] = {milestone.name.lower(): milestone for milestone in Milestone}


HoldToken = Annotated[
    str,
    Meta(pattern="^[0-9a-f]{32}$", description="The token that came with the nonce: it shows whose it is."),
]


class AllocateIn(_In):
    """How many nonces, and for how long."""

    count: Annotated[int, Meta(ge=1, le=MOST_NONCES, description="How many.")] = 1
    hold_for_s: (
        Annotated[float, Meta(gt=0, le=HOLD_S_MAX, description="For how many seconds at least.")] | None
    ) = None


class SubmittedIn(_In):
    token: HoldToken
    tx_hash: HashText


class UsedIn(_In):
    token: HoldToken
    tx_hash: HashText | None = None


class RecyclableIn(_In):
    token: HoldToken

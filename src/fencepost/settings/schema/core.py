"""Declare every setting once: its type with bounds, its default, and its description.

Parsing, error messages, `fencepost config`, its `--example` and `docs/settings.md` are all generated from here.
The key of a setting is its path of names without the unit: `settings.lease.duration_s` is `lease.duration`, and
FENCEPOST_LEASE_DURATION in the environment. A group that is constructed without arguments holds the defaults.
"""

# ruff: noqa: RUF009 - setting() is a dataclasses.field() that also stores type, default and description

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Literal

from fencepost.domain.ids import Address
from fencepost.settings.fields import Declared, declared_in, setting
from fencepost.settings.numeric_types import Duration, DurationList, Gwei, Integer, IntegerOr, Number
from fencepost.settings.schema.cluster import AdmissionSettings, MetricsSettings, RoutingSettings
from fencepost.settings.schema.nonce_service import NonceScheme, NonceServiceSettings
from fencepost.settings.types import Choice, Dsn, FilePath, Flag, HeaderList, Secret, Text, Url, UrlList

SignerMode = Literal["strict", "pipelined"]
FeeSourceName = Literal["node", "gas_station", "fixed", "legacy", "disabled"]
StartFrom = int | Literal["chain"]
ConfirmationTag = Literal["safe", "finalized"]
_CONFIRMATION_TAGS: tuple[ConfirmationTag, ...] = ("safe", "finalized")

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400
_MAX_BIGINT = 2**63 - 1  # the largest bigint of PostgreSQL
_MAX_CHAIN_ID = 2**63 - 37  # EIP-2294
_GWEI = 10**9
_MAX_PRICE_WEI = 1_000_000 * _GWEI


@dataclass(frozen=True, slots=True)
class Node:
    """Name a node and the address at which other nodes reach it."""

    id: str = setting(
        Text("letters, digits and . _ : - only", r"[A-Za-z0-9._:-]*", 100),
        "",
        'The name of this node, unique among all nodes; "" uses the host name and the API port.',
    )
    url: str = setting(
        Url(("http", "https")),
        "",
        "The URL at which other nodes reach this node's API; without a port, the port that it listens on is added."
        ' "" uses the address that it listens on.',
    )


@dataclass(frozen=True, slots=True)
class Database:
    """Select and configure PostgreSQL."""

    dsn: str = setting(Dsn(), "", 'The URL of the PostgreSQL database; "" starts an embedded server.')
    pool_size: int = setting(
        Integer(4, 100),
        10,
        "The maximum number of connections per node; two of them are reserved for leases.",
    )
    connect_timeout_s: float = setting(
        Duration(0.1, 5 * _MINUTE_S), "5s", "The time-out for opening a connection."
    )
    failover_loses_commits: bool = setting(
        Flag(),
        True,
        "Whether the database may lose its last commits in a fail-over. If on, each signer fills one window of nonces after"
        " a fail-over before it continues. Turn it off only if every commit waits for the replica that takes over.",
    )
    migrate_on_start: bool = setting(
        Flag(),
        True,
        "Whether a node applies missing migrations at start; if off, it does not start on an old schema.",
    )


@dataclass(frozen=True, slots=True)
class Embedded:
    """Configure the embedded PostgreSQL and dev chain."""

    data_dir: str = setting(
        FilePath(),
        "",
        'The directory for the data of the embedded PostgreSQL; "" uses the user\'s data directory, or /var/lib/fencepost'
        " for root.",
    )
    cache_dir: str = setting(
        FilePath(),
        "",
        'The directory for downloaded programs such as the dev chain; "" uses the user\'s cache directory, or'
        " /var/cache/fencepost for root.",
    )
    block_time_s: float = setting(
        Duration(0, _MINUTE_S),
        "1s",
        "The time between blocks of the embedded dev chain; 0 mines each transaction immediately.",
    )


@dataclass(frozen=True, slots=True)
class Lease:
    """Configure the leases of signers."""

    duration_s: float = setting(
        Duration(0.5, 5 * _MINUTE_S), "10s", "How long a lease is valid after its last renewal."
    )
    renew_interval_s: float = setting(
        Duration(0.05, 2 * _MINUTE_S),
        "2.5s",
        "How often a node renews its leases; must be less than half of lease.duration.",
    )
    skew_allowance_s: float = setting(
        Duration(0, 5 * _MINUTE_S),
        "0s",
        "How long another node waits after a lease has expired before it takes over. Only the database's clock counts.",
    )
    idle_release_s: float = setting(
        Duration(0, _DAY_S), "30s", "How long a node keeps the lease of a signer without work."
    )
    silent_release_s: float = setting(
        Duration(1, _DAY_S),
        "10s",
        "How long a node that can't read a chain, or whose endpoints reject a call that a signer needs, keeps the leases"
        " while another node can read the chain.",
    )


@dataclass(frozen=True, slots=True)
class Nonce:
    """Configure how signers allocate nonces."""

    mode: SignerMode = setting(
        Choice(("strict", "pipelined")),
        "strict",
        "How many transactions per signer may be in flight: one, confirmed before the next, for an account that has never"
        " sent (strict), or a window of them (pipelined).",
    )
    start_from: StartFrom = setting(
        IntegerOr(0, _MAX_BIGINT, ("chain",)),
        0,
        'The first nonce of a signer that is new to the database; "chain" uses the account\'s nonce on the chain.',
    )
    chain_query: Literal["off", "pending", "latest"] = setting(
        Choice(("off", "pending", "latest")),
        "pending",
        "Which of the chain's nonces is compared with the cursor before a nonce is allocated.",
    )
    state_timeout_s: float = setting(
        Duration(0, _DAY_S), "30s", "How long the chain's nonce is cached; 0 reads it every time."
    )
    max_in_flight: int = setting(
        Integer(1, 1024), 16, "The window of a pipelined signer; in strict mode it is 1."
    )
    shared_key: bool = setting(
        Flag(),
        False,
        "Whether other programs send with the same keys. If on, their transactions are adopted and journaled; if off, they"
        " put the signer into PROTECT. Mined requests are never sent twice either way, but after a restore a transaction that"
        " is only in a pool can't be distinguished from theirs.",
    )
    search_blocks: int = setting(
        Integer(1, 10_000_000),
        10_000,
        "How many blocks are searched for the transaction that consumed a nonce if the endpoint has no old state to bisect."
        " If it is not found, the signer goes into PROTECT.",
    )


@dataclass(frozen=True, slots=True)
class Resubmit:
    """Configure when unmined transactions are sent again."""

    enabled: bool = setting(Flag(), True, "Whether a transaction without a receipt is resubmitted.")
    interval_s: float = setting(
        Duration(0.1, _DAY_S),
        "60s",
        "How long a transaction stays without a receipt before it is resubmitted.",
    )
    max_attempts: int = setting(
        Integer(0, 1_000_000), 0, "How often the same bytes are resubmitted; 0 means no limit."
    )
    stuck_after: int = setting(
        Integer(0, 1_000_000),
        10,
        "After how many resubmissions a transaction without a receipt is marked STUCK; it is still resubmitted. 0 never marks.",
    )
    stuck_hook: str = setting(
        Text("module:function", r"(?:[A-Za-z_][\w.]*:[A-Za-z_][\w.]*)?", 200),
        "",
        "The async function, written module:function, that decides what happens to a transaction after"
        ' resubmit.max_attempts: wait, resubmit, mark or filler. "" marks it as stuck.',
    )


@dataclass(frozen=True, slots=True)
class Confirmations:
    """Configure when a mined transaction is final."""

    required: int | ConfirmationTag = setting(
        IntegerOr(0, 1000, _CONFIRMATION_TAGS),
        20,
        'How many confirmations make a result final, or "safe" or "finalized" for the chain\'s own block of that name.',
    )
    stale_receipt_timeout_s: float = setting(
        Duration(0.1, _DAY_S),
        "60s",
        "How long a receipt may be missing before the transaction is checked again.",
    )
    receipt_workers: int = setting(
        Integer(1, 200), 10, "The maximum number of concurrent receipt requests per node."
    )
    fetch_receipt_upon_entry: bool = setting(
        Flag(), False, "Whether the receipt is requested as soon as tracking starts, before the next block."
    )


@dataclass(frozen=True, slots=True)
class Bump:
    """Configure replacements at a higher price."""

    enabled: bool = setting(
        Flag(), False, "Whether a transaction that stays unmined is replaced at a higher price."
    )
    percent: int = setting(
        Integer(10, 500),
        10,
        "By how many percent a bump raises the fee cap and the priority fee; at least fees.min_bump counts.",
    )
    after_resubmits: int = setting(
        Integer(1, 1000), 3, "How often the same bytes are resubmitted before the price is raised."
    )


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Choose the tip per tier: a percentile of the tips in the last blocks."""

    slow: int = setting(Integer(0, 100), 10, "The percentile of the tier slow.")
    normal: int = setting(Integer(0, 100), 50, "The percentile of the tier normal.")
    fast: int = setting(Integer(0, 100), 75, "The percentile of the tier fast.")
    urgent: int = setting(Integer(0, 100), 95, "The percentile of the tier urgent.")


_POINTER = Text('a JSON pointer such as /standard/maxFee, or ""', r"(?:/[^/~]*(?:~[01][^/~]*)*)*", 200)


@dataclass(frozen=True, slots=True)
class GasStationSettings:
    """Configure the gas station that is used if fees.source is gas_station."""

    url: str = setting(Url(("http", "https")), "", "The URL of the gas station, which answers with JSON.")
    headers: tuple[tuple[str, str], ...] = setting(
        HeaderList(), [], "Headers for the gas station, such as its API key."
    )
    unit: Literal["wei", "gwei"] = setting(
        Choice(("wei", "gwei")), "gwei", "The unit of its prices. A text that starts with 0x is in wei."
    )
    cache_s: float = setting(
        Duration(0.1, 10 * _MINUTE_S),
        "5s",
        "How long its answer is used, and how long a failing one is not asked.",
    )
    timeout_s: float = setting(Duration(0.1, _MINUTE_S), "2s", "The time-out of a call to it.")
    slow_fee_cap: str = setting(_POINTER, "", "The pointer to the maximum fee of the tier slow.")
    slow_tip: str = setting(_POINTER, "", "The pointer to the priority fee of the tier slow.")
    normal_fee_cap: str = setting(
        _POINTER,
        "",
        "The pointer to the maximum fee of the tier normal, which tiers without a pointer use too.",
    )
    normal_tip: str = setting(
        _POINTER,
        "",
        'The pointer to the priority fee of the tier normal; "" means one price, as before EIP-1559.',
    )
    fast_fee_cap: str = setting(_POINTER, "", "The pointer to the maximum fee of the tier fast.")
    fast_tip: str = setting(_POINTER, "", "The pointer to the priority fee of the tier fast.")
    urgent_fee_cap: str = setting(_POINTER, "", "The pointer to the maximum fee of the tier urgent.")
    urgent_tip: str = setting(_POINTER, "", "The pointer to the priority fee of the tier urgent.")


@dataclass(frozen=True, slots=True)
class FeeSettings:
    """Configure the fees per gas."""

    source: FeeSourceName = setting(
        Choice(("node", "gas_station", "fixed", "legacy", "disabled")),
        "node",
        "Where fees come from: the fee history of endpoints (node), an HTTP service (gas_station), fees.fixed_fee_cap and"
        " fees.fixed_tip (fixed), eth_gasPrice with transactions of type 0 (legacy), or the request alone (disabled).",
    )
    tier: Literal["slow", "normal", "fast", "urgent"] = setting(
        Choice(("slow", "normal", "fast", "urgent")),
        "normal",
        "Which of the suggested prices a request without its own price or tier pays.",
    )
    history_blocks: int = setting(
        Integer(1, 1024), 20, "Over how many blocks endpoints report the tips, if fees.source is node."
    )
    relative_limit: int = setting(
        Integer(0, 1000),
        5,
        "How many times the usual suggestion a price may be: a gas station's against the endpoints', the endpoints' against"
        " their own of the last minute. 0 means no limit.",
    )
    relative_floor_wei: int = setting(
        Gwei(0, _MAX_PRICE_WEI),
        "10",
        "The price per gas, in Gwei, up to which fees.relative_limit does not apply.",
    )
    fixed_fee_cap_wei: int = setting(
        Gwei(0, _MAX_PRICE_WEI),
        "0",
        "The maximum fee per gas, in Gwei, if fees.source is fixed; must then be above 0.",
    )
    fixed_tip_wei: int = setting(
        Gwei(0, _MAX_PRICE_WEI),
        "0",
        "The priority fee per gas, in Gwei, if fees.source is fixed; at most fees.fixed_fee_cap.",
    )
    cap_wei: int = setting(
        Gwei(1, _MAX_PRICE_WEI),
        "500",
        "The upper limit of the fee per gas, in Gwei, for every transaction and replacement. A caller's maximum may be lower."
        " A filler may pay fees.filler_reserve more, and no caller's maximum applies to it.",
    )
    min_bump: int = setting(
        Integer(10, 500),
        13,
        "By how many percent a replacement raises fee cap and priority fee at least: what the chain's pools require, and a"
        " margin for rounding.",
    )
    filler_reserve: int = setting(
        Integer(0, 1000),
        25,
        "How many percent above fees.cap a filler may pay, so that a transaction that waits at the cap can be replaced and"
        " the signer continues. A spending policy's feeCapMax still holds.",
    )
    bump: Bump = field(default_factory=Bump)
    percentiles: Percentiles = field(default_factory=Percentiles)
    gas_station: GasStationSettings = field(default_factory=GasStationSettings)


@dataclass(frozen=True, slots=True)
class FundsSettings:
    """Configure when the balance of a signer is reported as low."""

    low_balance_wei: int = setting(
        Gwei(0, 10**30),
        "0",
        "The balance, in Gwei, below which the event signer.low_balance is recorded; 0: never. Transactions in flight count as"
        " spent.",
    )
    low_balance_transactions: int = setting(
        Integer(0, 1_000_000),
        0,
        "The event signer.low_balance is also recorded if the balance pays for fewer transactions like the next one than this;"
        " 0: never.",
    )


@dataclass(frozen=True, slots=True)
class Gas:
    """Configure gas limits and dry runs."""

    estimate_factor: float = setting(
        Number(1, 10), 1.2, "The gas limit as a multiple of the endpoint's estimate."
    )
    tx_max: int = setting(
        Integer(0, _MAX_BIGINT),
        2**24,
        "The maximum gas limit per request. The default is that of EIP-7825; raise it for chains without that rule."
        " 0 means no limit.",
    )
    refuse_reverting: bool = setting(
        Flag(), True, "Whether a request whose dry run reverts is rejected before it gets a nonce."
    )


@dataclass(frozen=True, slots=True)
class Errors:
    """Configure how errors of endpoints are classified."""

    file: str = setting(
        FilePath(),
        "",
        "A TOML file with own [[rules]] for error texts of endpoints, which are tried before the shipped ones;"
        " `fencepost errors test` shows their effect.",
    )


@dataclass(frozen=True, slots=True)
class Lanes:
    """Limit the work of a node's lanes."""

    workers: int = setting(Integer(1, 4096), 512, "How many signers a node serves at the same time.")
    read_ahead: int = setting(
        Integer(16, 10_000),
        512,
        "How many queued requests per signer a node keeps in memory; the rest stays in the database.",
    )


@dataclass(frozen=True, slots=True)
class History:
    """Limit the journal of a transaction."""

    max_entries: int = setting(
        Integer(10, 10_000), 200, "How many journal rows of repeated actions are kept per transaction."
    )


@dataclass(frozen=True, slots=True)
class Webhook:
    """Configure the delivery of events to webhooks."""

    allow_private: bool = setting(
        Flag(),
        False,
        "Whether webhooks may reach loopback, private and link-local addresses, and use http without TLS.",
    )
    timeout_s: float = setting(
        Duration(0.1, 5 * _MINUTE_S), "15s", "How long an endpoint may take to answer."
    )
    retry_delays_s: tuple[float, ...] = setting(
        DurationList(0, 30 * _DAY_S, 20),
        ["0s", "5s", "5m", "30m", "2h", "5h", "10h", "14h", "20h", "24h"],
        "The pauses before each attempt to deliver an event; a random part of up to 20 % is added. After the last attempt the event"
        " is given up, except with ordered: signer and onError: block.",
    )
    skip_after: int = setting(
        Integer(1, 20),
        3,
        "With ordered: signer and onError: skip, how many failed attempts it takes until the next event of the signer is sent.",
    )
    disable_after_s: float = setting(
        Duration(1, 365 * _DAY_S),
        "120h",
        "How long an endpoint may only fail until its subscription is disabled.",
    )
    secret_overlap_s: float = setting(
        Duration(0, 30 * _DAY_S), "24h", "How long the former secret still signs after a rotation."
    )
    max_in_flight: int = setting(Integer(1, 100), 10, "How many requests one endpoint gets at the same time.")


@dataclass(frozen=True, slots=True)
class Events:
    """Configure how a node learns of new blocks, and how long it keeps events."""

    mode: Literal["poll"] = setting(
        Choice(("poll",)),
        "poll",
        "How a node learns of new blocks: it polls the endpoints every chains.NAME.poll_interval.",
    )
    retention_s: float = setting(
        Duration(1, 10 * 365 * _DAY_S),
        "720h",
        "How long events are kept: the journal of ended transactions, which is also their history. Live transactions keep"
        " theirs.",
    )
    max_subscriptions_per_key: int = setting(
        Integer(0, 10_000), 20, "How many subscriptions one API key may have; 0 allows none."
    )
    webhook: Webhook = field(default_factory=Webhook)


@dataclass(frozen=True, slots=True)
class Explain:
    """Configure when an explanation calls something slow."""

    stalled_after_s: float = setting(
        Duration(0.1, _DAY_S),
        "60s",
        "After how long without a new block a chain counts as stalled, and a transaction in the pool as pending for long.",
    )


@dataclass(frozen=True, slots=True)
class Api:
    """Configure the HTTP API."""

    host: str = setting(
        Text("a host name or an IP address", r"[A-Za-z0-9._:%-]+", 255),
        "127.0.0.1",
        "The address that the API listens on.",
    )
    port: int = setting(Integer(0, 65535), 8420, "The port that the API listens on; 0 selects a free one.")
    auth: Literal["open", "required"] = setting(
        Choice(("open", "required")),
        "open",
        "Whether every call needs an API key (required), or local callers need none until the first key is created (open)."
        " open requires a loopback address, and has no effect once a key has existed.",
    )
    expose_nonce: bool = setting(
        Flag(), False, "Whether responses show nonces to every caller; if off, only to API keys of operators."
    )
    max_connections: int = setting(
        Integer(16, 1_000_000),
        4096,
        "The maximum number of API connections per process; lower if the limit of open files is low. At the limit, new"
        " connections replace those that wait for data from their client.",
    )
    max_connections_per_peer: int = setting(
        Integer(16, 1_000_000),
        1024,
        "The maximum number of API connections per peer (an IPv4 address or an IPv6 /64 network); at most three quarters of"
        " the total if the limit of open files lowers that.",
    )
    max_waits_per_key: int = setting(
        Integer(1, 100_000),
        256,
        "How many calls per API key may wait at a node at the same time: with wait, for a command, or for a hash on /rpc.",
    )
    ready_needs_chain: bool = setting(
        Flag(),
        False,
        "Whether /readyz fails while no endpoint of a chain answers. If off, it fails only without the database.",
    )
    max_streams_per_key: int = setting(
        Integer(1, 100_000),
        64,
        "How many event streams per API key may be open at a node at the same time; callers without a key share one limit.",
    )
    intake: Literal["any", "leader"] = setting(
        Choice(("any", "leader")),
        "any",
        "Which nodes accept a request: any node, or only the holder of the signer's lease (leader).",
    )


@dataclass(frozen=True, slots=True)
class ClientSide:
    """Configure the commands that call a node, such as `fencepost send`."""

    urls: tuple[str, ...] = setting(
        UrlList(("http", "https")),
        ["http://127.0.0.1:8420"],
        "The URLs of the nodes that commands call; if one does not answer, the next is tried.",
        variable="FENCEPOST_URL",
    )
    api_key: str = setting(
        Secret("a token as `fencepost keys create` shows it", r"[!-~]{1,100}"),
        "",
        "The API key that commands send.",
        variable="FENCEPOST_API_KEY",
    )


@dataclass(frozen=True, slots=True)
class Keys:
    """Configure the signing keys.

    `private_keys` come only from variables FENCEPOST_KEY_<ANYTHING>: 0x and 64 hex digits each.
    """

    file: str = setting(FilePath(), "", "A file with one private key per line, in hex.")
    keystore_dir: str = setting(
        FilePath(), "", "A directory with JSON keystores; needs keys.keystore_password_file."
    )
    keystore_password_file: str = setting(FilePath(), "", "The file with the password of the keystores.")
    remote_url: str = setting(
        Url(("http", "https")), "", 'The URL of a remote signing service; "" means none.'
    )
    dev_accounts: bool = setting(
        Flag(), True, "Whether the funded accounts of the embedded dev chain are available as signers on it."
    )
    private_keys: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Log:
    """Configure the log."""

    format: Literal["auto", "pretty", "json"] = setting(
        Choice(("auto", "pretty", "json")),
        "auto",
        "The format of log lines; auto is pretty on a terminal and json otherwise.",
    )
    level: Literal["debug", "info", "warning", "error"] = setting(
        Choice(("debug", "info", "warning", "error")),
        "info",
        "The lowest level that is logged.",
    )


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """Configure one chain: a table `[chains.NAME]`."""

    id: int = setting(
        Integer(0, _MAX_CHAIN_ID),
        0,
        "The chain id that every endpoint must serve. Required, except for the embedded dev chain, where 0 means 31337.",
    )
    rpc_urls: tuple[str, ...] = setting(
        UrlList(("http", "https", "ws", "wss")),
        [],
        "The RPC endpoints of the chain; an empty list starts the embedded dev chain.",
    )
    poll_interval_s: float = setting(
        Duration(0.01, 10 * _MINUTE_S), "1s", "How often the endpoints are polled for new blocks."
    )
    stable_depth: int = setting(
        Integer(0, 10_000),
        0,
        "The event block.stable is recorded for each block with so many blocks above it, and block.reorg if a fork removes one;"
        " 0: no events about blocks.",
    )


@dataclass(frozen=True, slots=True)
class SignerSettings:
    """Hold the nonce settings of one signer, with its overrides applied."""

    mode: SignerMode
    start_from: StartFrom
    max_in_flight: int  # always 1 in strict mode


@dataclass(frozen=True, slots=True)
class SignerOverride:
    """Override settings for one signer: a table `[signers."0xADDRESS"]`.

    None means the value in `nonce` (for `scheme`: in `nonce_service`), whose types and bounds apply here too.
    """

    mode: SignerMode | None = None
    start_from: StartFrom | None = None
    max_in_flight: int | None = None
    scheme: NonceScheme | None = None  # of the nonce service


def _one_dev_chain() -> Mapping[str, ChainSettings]:
    return MappingProxyType({"default": ChainSettings()})


def _no_overrides() -> Mapping[Address, SignerOverride]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Settings:
    """Hold all settings of a process."""

    default_chain: str = setting(
        Text("a name of letters, digits, _ and -", r"[A-Za-z0-9_-]+", 63),
        "default",
        "The chain for requests without a chain id; the NAME of one of [chains.NAME].",
    )
    node: Node = field(default_factory=Node)
    database: Database = field(default_factory=Database)
    embedded: Embedded = field(default_factory=Embedded)
    lease: Lease = field(default_factory=Lease)
    nonce: Nonce = field(default_factory=Nonce)
    resubmit: Resubmit = field(default_factory=Resubmit)
    confirmations: Confirmations = field(default_factory=Confirmations)
    fees: FeeSettings = field(default_factory=FeeSettings)
    funds: FundsSettings = field(default_factory=FundsSettings)
    gas: Gas = field(default_factory=Gas)
    errors: Errors = field(default_factory=Errors)
    lanes: Lanes = field(default_factory=Lanes)
    history: History = field(default_factory=History)
    events: Events = field(default_factory=Events)
    explain: Explain = field(default_factory=Explain)
    api: Api = field(default_factory=Api)
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    intake: AdmissionSettings = field(default_factory=AdmissionSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    client: ClientSide = field(default_factory=ClientSide)
    nonce_service: NonceServiceSettings = field(default_factory=NonceServiceSettings)
    keys: Keys = field(default_factory=Keys)
    log: Log = field(default_factory=Log)
    chains: Mapping[str, ChainSettings] = field(default_factory=_one_dev_chain)
    signers: Mapping[Address, SignerOverride] = field(default_factory=_no_overrides)

    def signer_settings(self, address: Address) -> SignerSettings:
        """Return the nonce settings of a signer, with its overrides applied."""
        own = self.signers.get(address, SignerOverride())
        mode = self.nonce.mode if own.mode is None else own.mode
        window = self.nonce.max_in_flight if own.max_in_flight is None else own.max_in_flight
        return SignerSettings(
            mode=mode,
            start_from=self.nonce.start_from if own.start_from is None else own.start_from,
            max_in_flight=window if mode == "pipelined" else 1,
        )

    def nonce_scheme(self, address: Address) -> NonceScheme:
        """Return the nonce service's scheme for a signer."""
        return self.signers.get(address, SignerOverride()).scheme or self.nonce_service.scheme


DECLARED: Mapping[str, Declared] = MappingProxyType(declared_in(Settings))
CHAIN_KEYS: Mapping[str, Declared] = MappingProxyType(declared_in(ChainSettings))
SIGNER_KEYS: Mapping[str, Declared] = MappingProxyType(
    {
        name: DECLARED[f"nonce_service.{name}" if name == "scheme" else f"nonce.{name}"]
        for name in (member.name for member in fields(SignerOverride))
    }
)

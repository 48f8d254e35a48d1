"""Every setting there is, declared once: its kind with bounds, its default, one sentence on what it does.

Parsing, error messages, `fencepost config`, its `--example` and the papers all come from here; there is no second list.
The key of a setting is its path of names without the unit: `settings.lease.duration_s` is `lease.duration`, and
FENCEPOST_LEASE_DURATION in the environment. Without arguments each group holds its defaults.
"""

# ruff: noqa: RUF009 - setting() is a dataclasses.field() that also remembers kind, default and sentence

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Literal

from fencepost.domain.ids import Address
from fencepost.settings.declaration_of_nodes import IntakeRules, MetricsRules, RoutingRules
from fencepost.settings.declaration_of_nonces import NonceScheme, NonceServiceRules
from fencepost.settings.kinds import Choice, Dsn, FilePath, Flag, Secret, Text, Url, UrlList
from fencepost.settings.quantities import Duration, Gwei, Number, Whole, WholeOr
from fencepost.settings.rules import Declared, declared_in, setting

SignerMode = Literal["strict", "pipelined"]
StartFrom = int | Literal["chain"]
ConfirmationTag = Literal["safe", "finalized"]
_CONFIRMATION_TAGS: tuple[ConfirmationTag, ...] = ("safe", "finalized")

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400
_BIGINT_MAX = 2**63 - 1  # what a column of PostgreSQL holds
_CHAIN_ID_MAX = 2**63 - 37  # EIP-2294
_GWEI = 10**9
_PRICE_WEI_MAX = 1_000_000 * _GWEI


@dataclass(frozen=True, slots=True)
class Node:
    id: str = setting(
        Text("letters, digits and . _ : - only", r"[A-Za-z0-9._:-]*", 100),
        "",
        'The name of this node, different on every node; "" takes the host name and the API port.',
    )
    url: str = setting(
        Url(("http", "https")),
        "",
        "Where other nodes reach this one's API; without a port, at the port it listens on."
        ' "" is the address it listens on.',
    )


@dataclass(frozen=True, slots=True)
class Database:
    dsn: str = setting(Dsn(), "", 'The PostgreSQL to use; "" starts an embedded one.')
    pool_size: int = setting(
        Whole(4, 100), 10, "How many connections a node opens at most; two of them serve its leases alone."
    )
    connect_timeout_s: float = setting(
        Duration(0.1, 5 * _MINUTE_S), "5s", "How long a new connection may take before it counts as failed."
    )
    failover_loses_commits: bool = setting(
        Flag(),
        True,
        "Whether a server that takes over may lack the last commits. After a fail-over a signer then fills as many nonces"
        " as its window is wide before it goes on. Off only where every commit waits for the replica that takes over.",
    )
    migrate_on_start: bool = setting(
        Flag(), True, "Whether a starting node brings the schema up to date; off, it refuses an old schema."
    )


@dataclass(frozen=True, slots=True)
class Embedded:
    data_dir: str = setting(
        FilePath(),
        "",
        'Where the embedded PostgreSQL keeps its data; "" is the user\'s data directory, for root /var/lib/fencepost.',
    )
    cache_dir: str = setting(
        FilePath(),
        "",
        'Where downloaded programs such as the dev chain are kept; "" is the user\'s cache directory, for root /var/cache/fencepost.',
    )
    block_time_s: float = setting(
        Duration(0, _MINUTE_S), "1s", "The time between blocks of the embedded dev chain; 0 mines at once."
    )


@dataclass(frozen=True, slots=True)
class Lease:
    duration_s: float = setting(
        Duration(0.5, 5 * _MINUTE_S), "10s", "How long a signer stays with its node after the last renewal."
    )
    renew_interval_s: float = setting(
        Duration(0.05, 2 * _MINUTE_S),
        "2.5s",
        "How often a node renews its leases; less than half of lease.duration.",
    )
    skew_allowance_s: float = setting(
        Duration(0, 5 * _MINUTE_S),
        "0s",
        "The extra time another node waits past expiry before it takes over. All clocks are the database's.",
    )
    idle_release_s: float = setting(
        Duration(0, _DAY_S), "30s", "How long a node keeps the lease of a signer that has nothing to do."
    )


@dataclass(frozen=True, slots=True)
class Nonce:
    mode: SignerMode = setting(
        Choice(("strict", "pipelined")),
        "strict",
        "Whether a signer has one transaction at a time, final before the next, and must be new to the chain (strict), or a window of them (pipelined).",
    )
    start_from: StartFrom = setting(
        WholeOr(0, _BIGINT_MAX, ("chain",)),
        0,
        'The first nonce of a signer new to the database; "chain" takes what the chain says.',
    )
    chain_query: Literal["off", "pending", "latest"] = setting(
        Choice(("off", "pending", "latest")),
        "pending",
        "Which nonce of the chain is compared with ours before allocation.",
    )
    state_timeout_s: float = setting(
        Duration(0, _DAY_S), "30s", "How long the chain's answer about a nonce is trusted; 0 asks every time."
    )
    max_in_flight: int = setting(Whole(1, 1024), 16, "The window of a pipelined signer; a strict one has 1.")


@dataclass(frozen=True, slots=True)
class Resubmit:
    enabled: bool = setting(Flag(), True, "Whether a transaction without a receipt is sent again.")
    interval_s: float = setting(
        Duration(0.1, _DAY_S), "60s", "The time without a receipt after which it is sent again."
    )
    max_attempts: int = setting(
        Whole(0, 1_000_000), 0, "How often the same bytes are sent again; 0 is without limit."
    )


@dataclass(frozen=True, slots=True)
class Confirmations:
    required: int | ConfirmationTag = setting(
        WholeOr(0, 1000, _CONFIRMATION_TAGS),
        20,
        'How many blocks must follow before a result is final; or the chain\'s own "safe" or "finalized" block.',
    )
    stale_receipt_timeout_s: float = setting(
        Duration(0.1, _DAY_S),
        "60s",
        "How long a receipt may stay away before the transaction is looked at again.",
    )
    receipt_workers: int = setting(
        Whole(1, 200), 10, "How many receipt requests a node has under way at most."
    )
    fetch_receipt_upon_entry: bool = setting(
        Flag(), False, "Whether the receipt is asked for as soon as tracking begins, before the next block."
    )


@dataclass(frozen=True, slots=True)
class Bump:
    enabled: bool = setting(
        Flag(), False, "Whether a transaction that stays unmined is replaced at a higher price."
    )
    percent: int = setting(Whole(10, 500), 10, "By how much a replacement raises both prices, in percent.")
    after_resubmits: int = setting(
        Whole(1, 1000), 3, "How often the same bytes are sent before the price is raised."
    )


@dataclass(frozen=True, slots=True)
class FeeRules:
    source: Literal["node", "fixed"] = setting(
        Choice(("node", "fixed")),
        "node",
        "Where prices come from: what the node suggests, or the two fixed prices below.",
    )
    fixed_fee_cap_wei: int = setting(
        Gwei(0, _PRICE_WEI_MAX),
        "0",
        "The fee cap in Gwei with fees.source = fixed, where it must be above 0.",
    )
    fixed_tip_wei: int = setting(
        Gwei(0, _PRICE_WEI_MAX), "0", "The tip in Gwei with fees.source = fixed; at most the fixed fee cap."
    )
    cap_wei: int = setting(
        Gwei(1, _PRICE_WEI_MAX),
        "500",
        "The price in Gwei that no transaction and no replacement ever passes.",
    )
    bump: Bump = field(default_factory=Bump)


@dataclass(frozen=True, slots=True)
class Gas:
    estimate_factor: float = setting(
        Number(1, 10), 1.2, "The gas limit as a multiple of what the node estimates."
    )
    refuse_reverting: bool = setting(
        Flag(), True, "Whether a request whose dry run reverts is refused before it has a nonce."
    )


@dataclass(frozen=True, slots=True)
class Lanes:
    workers: int = setting(Whole(1, 4096), 512, "How many signers a node works for at the same time.")
    read_ahead: int = setting(
        Whole(16, 10_000),
        512,
        "How many waiting requests of a signer a node holds in memory; the rest stays stored.",
    )


@dataclass(frozen=True, slots=True)
class History:
    max_entries: int = setting(
        Whole(10, 10_000), 200, "How many journal rows of repeated actions are kept for a transaction."
    )


@dataclass(frozen=True, slots=True)
class Events:
    mode: Literal["poll"] = setting(
        Choice(("poll",)),
        "poll",
        "How a node learns of new blocks: it asks at chains.NAME.poll_interval.",
    )


@dataclass(frozen=True, slots=True)
class Api:
    host: str = setting(
        Text("a host name or an IP address", r"[A-Za-z0-9._:%-]+", 255),
        "127.0.0.1",
        "The address the API listens on.",
    )
    port: int = setting(Whole(0, 65535), 8420, "The port the API listens on; 0 takes any free one.")
    expose_nonce: bool = setting(Flag(), False, "Whether answers tell the nonce of a transaction.")
    intake: Literal["any", "leader"] = setting(
        Choice(("any", "leader")),
        "any",
        "Which nodes take a request: any, or only the one that holds the signer's lease.",
    )


@dataclass(frozen=True, slots=True)
class ClientSide:
    """For the commands that talk to a node, as `fencepost send` does."""

    urls: tuple[str, ...] = setting(
        UrlList(("http", "https")),
        ["http://127.0.0.1:8420"],
        "The nodes that commands talk to; when one does not answer, the next is asked.",
        variable="FENCEPOST_URL",
    )
    api_key: str = setting(
        Secret("a token as `fencepost keys create` shows it", r"[!-~]{1,100}"),
        "",
        "The API key that commands send along.",
        variable="FENCEPOST_API_KEY",
    )


@dataclass(frozen=True, slots=True)
class Keys:
    """Whose keys sign. `private_keys` come from FENCEPOST_KEY_<ANYTHING> alone: 0x and 64 hex digits each."""

    file: str = setting(FilePath(), "", "A file with one private key a line in hex.")
    keystore_dir: str = setting(
        FilePath(), "", "A directory with JSON keystores; needs keys.keystore_password_file."
    )
    keystore_password_file: str = setting(
        FilePath(), "", "The file that holds the password of the keystores."
    )
    remote_url: str = setting(Url(("http", "https")), "", 'The remote service that signs; "" is none.')
    dev_accounts: bool = setting(
        Flag(), True, "Whether the embedded dev chain's accounts, which hold funds, may sign there."
    )
    private_keys: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Log:
    format: Literal["auto", "pretty", "json"] = setting(
        Choice(("auto", "pretty", "json")),
        "auto",
        "How log lines look; auto is pretty in a terminal and json elsewhere.",
    )
    level: Literal["debug", "info", "warning", "error"] = setting(
        Choice(("debug", "info", "warning", "error")),
        "info",
        "The least level that is logged.",
    )


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """A table `[chains.NAME]`."""

    id: int = setting(
        Whole(0, _CHAIN_ID_MAX), 0, "The chain id that the node must have; 0 takes what it says."
    )
    rpc_urls: tuple[str, ...] = setting(
        UrlList(("http", "https", "ws", "wss")), [], "The chain's nodes; none starts the embedded dev chain."
    )
    poll_interval_s: float = setting(
        Duration(0.01, 10 * _MINUTE_S), "1s", "How often new blocks are asked for."
    )


@dataclass(frozen=True, slots=True)
class SignerPolicy:
    mode: SignerMode
    start_from: StartFrom
    max_in_flight: int  # 1 in strict mode, whatever the settings say


@dataclass(frozen=True, slots=True)
class SignerOverride:
    """A table `[signers."0xADDRESS"]`: what is None is as in `nonce` (`scheme`: in `nonce_service`), by whose rules it is read."""

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
    default_chain: str = setting(
        Text("a name of letters, digits, _ and -", r"[A-Za-z0-9_-]+", 63),
        "default",
        "The chain of requests that name none; one of [chains.NAME].",
    )
    node: Node = field(default_factory=Node)
    database: Database = field(default_factory=Database)
    embedded: Embedded = field(default_factory=Embedded)
    lease: Lease = field(default_factory=Lease)
    nonce: Nonce = field(default_factory=Nonce)
    resubmit: Resubmit = field(default_factory=Resubmit)
    confirmations: Confirmations = field(default_factory=Confirmations)
    fees: FeeRules = field(default_factory=FeeRules)
    gas: Gas = field(default_factory=Gas)
    lanes: Lanes = field(default_factory=Lanes)
    history: History = field(default_factory=History)
    events: Events = field(default_factory=Events)
    api: Api = field(default_factory=Api)
    routing: RoutingRules = field(default_factory=RoutingRules)
    intake: IntakeRules = field(default_factory=IntakeRules)
    metrics: MetricsRules = field(default_factory=MetricsRules)
    client: ClientSide = field(default_factory=ClientSide)
    nonce_service: NonceServiceRules = field(default_factory=NonceServiceRules)
    keys: Keys = field(default_factory=Keys)
    log: Log = field(default_factory=Log)
    chains: Mapping[str, ChainSettings] = field(default_factory=_one_dev_chain)
    signers: Mapping[Address, SignerOverride] = field(default_factory=_no_overrides)

    def signer_policy(self, address: Address) -> SignerPolicy:
        own = self.signers.get(address, SignerOverride())
        mode = self.nonce.mode if own.mode is None else own.mode
        window = self.nonce.max_in_flight if own.max_in_flight is None else own.max_in_flight
        return SignerPolicy(
            mode=mode,
            start_from=self.nonce.start_from if own.start_from is None else own.start_from,
            max_in_flight=window if mode == "pipelined" else 1,
        )

    def nonce_scheme(self, address: Address) -> NonceScheme:
        return self.signers.get(address, SignerOverride()).scheme or self.nonce_service.scheme


DECLARED: Mapping[str, Declared] = MappingProxyType(declared_in(Settings))
CHAIN_KEYS: Mapping[str, Declared] = MappingProxyType(declared_in(ChainSettings))
SIGNER_KEYS: Mapping[str, Declared] = MappingProxyType(
    {
        name: DECLARED[f"nonce_service.{name}" if name == "scheme" else f"nonce.{name}"]
        for name in (member.name for member in fields(SignerOverride))
    }
)

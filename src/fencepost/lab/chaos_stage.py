"""The stage of a chaos run: its own PostgreSQL and chain, three endpoints, four nodes, each behind a wire of its own.

A node that ends, however it ends, is started again by the one who keeps it. Nothing is left when the stage is struck.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.adapters.postgres import migrate
from fencepost.adapters.postgres.pool import DriverPool
from fencepost.adapters.signers.local import LocalKeys
from fencepost.dev.anvil import anvil_node, find_anvil
from fencepost.dev.paths import default_cache_dir
from fencepost.dev.postgres import EmbeddedPostgres, embedded_postgres
from fencepost.dev.postgres_programs import owner_of
from fencepost.domain.ids import Address
from fencepost.errors import Unready
from fencepost.lab.chaos_chain import LabChain
from fencepost.lab.chaos_node import SKEW_S
from fencepost.lab.db_proxy import DbProxy, db_proxy
from fencepost.lab.failpoints import ORDER_FILE
from fencepost.lab.machine import machine
from fencepost.lab.nodes import NodeProcess, order_node, start_ordered
from fencepost.lab.nursery import IS_POSSIBLE, Nursery, nursery
from fencepost.lab.rpc_proxy import Record, RpcProxy, rpc_proxy

ENDPOINTS = 3
RESTART_PAUSE_S = 0.2
CONNECTIONS_MOST = "90"  # of the server: the nodes and the lab need half of them
_ADMIN_TIMEOUT_S = 5.0
_HEAL_WITHIN_S = 30.0
GROWING_TABLES = ("journal", "managed_tx", "tx_attempt")
_DISK_FULL = """
CREATE FUNCTION lab_disk_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';
END $$"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is made of. Everything random in it comes from the seed."""

    seconds: float = 60.0
    seed: int = 7
    nodes: int = 4
    strict: int = 3
    pipelined: int = 10
    victims: int = 3  # strict, and a stranger uses their keys
    required_depth: int = 2
    block_time_s: float = 0.25
    lease_s: float = 3.0
    quiet_within_s: float = 60.0
    strict_per_s: float = 0.4  # requests a second and signer
    pipelined_per_s: float = 9.0

    def settings(self) -> dict[str, str]:
        return {
            "chains.default.poll_interval": "0.15s",
            "nonce.mode": "pipelined",
            "nonce.max_in_flight": "128",
            "nonce.state_timeout": "2s",
            "confirmations.required": str(self.required_depth),
            "confirmations.stale_receipt_timeout": "3s",
            "resubmit.interval": "1.5s",
            "fees.bump.enabled": "true",
            "fees.bump.after_resubmits": "2",
            "lease.duration": f"{self.lease_s}s",
            "lease.renew_interval": f"{self.lease_s / 4}s",
            "lease.skew_allowance": "0s",
            "lanes.workers": "16",
            "database.connect_timeout": "2s",
            "log.format": "json",
        }


@dataclass(slots=True)
class Slot:
    """A place for a node: whoever is in it is started again when it ends."""

    name: str
    wire: DbProxy
    order: Path
    log: Path
    node: NodeProcess | None = None
    starts: int = 0
    failed_starts: int = 0
    is_taken: bool = False  # by a fault that wants it for itself
    skew_s: float = 0.0  # of the wall clock of whoever is started next

    @property
    def is_up(self) -> bool:
        return self.node is not None and self.node.is_alive

    def signal(self, number: signal.Signals) -> None:
        if self.node is not None and self.node.is_alive:
            with contextlib.suppress(ProcessLookupError):
                self.node.process.send_signal(number)


@dataclass(slots=True)
class Happened:
    """A fault that struck: when, what, whom, for how long."""

    at_s: float
    kind: str
    target: str
    lasted_s: float = 0.0
    detail: str = ""


@dataclass(slots=True)
class Stage:
    plan: Plan
    postgres: EmbeddedPostgres
    dsn: str = field(repr=False)
    database: DriverPool
    chain: LabChain
    chain_id: int
    keys: LocalKeys
    strict: tuple[Address, ...]
    pipelined: tuple[Address, ...]
    victims: tuple[Address, ...]
    slots: list[Slot]
    endpoints: list[RpcProxy]
    record: Record
    settings: Mapping[str, str]
    config: Path
    private_keys: Sequence[str] = field(repr=False)
    machine: Mapping[str, str]
    nursery: Nursery | None  # where there can't be one, nodes are started from nothing
    happened: list[Happened] = field(default_factory=list)
    strangers: set[str] = field(default_factory=set)  # hashes
    struck: set[Address] = field(default_factory=set)  # victims whose key was used
    protected: set[Address] = field(default_factory=set)  # those of them that are in PROTECT
    lie_is_wanted: bool = False  # one endpoint is about to lie: the others are left well
    notes: Counter[str] = field(default_factory=Counter)
    began_s: float = field(default_factory=time.time)
    is_first_start: bool = True  # before the faults, a node that does not start is a mistake of ours

    @property
    def signers(self) -> tuple[Address, ...]:
        return (*self.strict, *self.pipelined, *self.victims)

    def chance(self, name: str) -> random.Random:
        return random.Random(f"{self.plan.seed}:{name}")

    async def spawn(self, slot: Slot, *, log: Path | None = None) -> NodeProcess:
        order = order_node(
            slot.name,
            dsn=_at_port(self.dsn, slot.wire.port),
            rpc_url=",".join(endpoint.url for endpoint in self.endpoints),
            private_keys=self.private_keys,
            settings=self.settings,
            log=log or slot.log,
            more_environ={
                ORDER_FILE: str(slot.order),
                SKEW_S: str(slot.skew_s),
                "FENCEPOST_CONFIG": str(self.config),
            },
        )
        if self.nursery is not None:
            return await self.nursery.start(order)
        return await start_ordered(order, module="fencepost.lab.chaos_node")

    async def keep(self, slot: Slot) -> None:
        """Until cancelled: somebody is in the slot, or is about to be."""
        try:
            while True:
                slot.order.unlink(missing_ok=True)
                try:
                    slot.node = await self.spawn(slot)
                except Unready:
                    if self.is_first_start:
                        raise
                    slot.failed_starts += 1
                else:
                    slot.starts += 1
                    await slot.node.process.wait()
                await asyncio.sleep(RESTART_PAUSE_S)
        finally:
            if slot.node is not None:
                slot.signal(signal.SIGCONT)
                await slot.node.stop()

    async def promote_database(self) -> None:
        """At its next start the server recovers as from an archive, which ends in a timeline of its own."""
        cluster = self.postgres.data_dir / "cluster"
        signal_file = cluster / "recovery.signal"
        signal_file.touch(mode=0o600)
        owner = owner_of(cluster)
        if owner is not None:
            os.chown(signal_file, owner.uid, owner.gid)
        await self.postgres.restart("immediate")

    async def refuse_rows(self, table: str, *, within_s: float) -> None:
        async with self.database.acquire() as connection, connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = {int(within_s * 1000)}")
            await connection.execute(
                f"CREATE TRIGGER lab_disk_full BEFORE INSERT ON {table} EXECUTE FUNCTION lab_disk_full()"
            )

    async def take_rows(self) -> None:
        """However often the database fails meanwhile."""
        deadline_s = time.monotonic() + _HEAL_WITHIN_S
        for table in GROWING_TABLES:
            while True:
                try:
                    await self.database.execute(f"DROP TRIGGER IF EXISTS lab_disk_full ON {table}")
                    break
                except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                    if time.monotonic() > deadline_s:
                        raise
                await asyncio.sleep(RESTART_PAUSE_S)

    async def heal(self) -> None:
        for endpoint in self.endpoints:
            endpoint.heal()
        for slot in self.slots:
            slot.order.unlink(missing_ok=True)
            slot.wire.heal()
            slot.signal(signal.SIGCONT)
        await self.take_rows()


@asynccontextmanager
async def stage(plan: Plan, *, logs: Path, report: Callable[[str], None]) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="fencepost-chaos-"))
        folder.chmod(0o711)  # noqa: ASYNC240 - once, before anything runs; PostgreSQL may be another user
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        binary = await find_anvil(default_cache_dir(), report=report)
        report("starting PostgreSQL and the chain")
        options = {
            "track_commit_timestamp": "on",
            "fsync": "on",
            "max_connections": CONNECTIONS_MOST,
            "restore_command": "false",  # there is no archive: all that a promoted server knows is its own log
            "recovery_target_timeline": "current",
        }
        postgres = await stack.enter_async_context(embedded_postgres(folder / "postgres", options=options))
        accounts = plan.strict + plan.pipelined + plan.victims
        chain = await stack.enter_async_context(
            anvil_node(binary=binary, run_dir=folder / "anvil", accounts=accounts, extra=("--no-mining",))
        )
        rpc = JsonRpc(chain.rpc_url, timeout_s=_ADMIN_TIMEOUT_S * 2, max_body_bytes=256 * 1024 * 1024)
        stack.push_async_callback(rpc.close)
        lab_chain = LabChain(rpc)
        record = Record()
        endpoints = [
            await stack.enter_async_context(
                rpc_proxy(
                    f"endpoint-{number}",
                    chain.rpc_url,
                    record=record,
                    chance=random.Random(f"{plan.seed}:endpoint-{number}"),
                    passage=lab_chain.passage,
                )
            )
            for number in range(1, ENDPOINTS + 1)
        ]
        private_keys = [f"0x{key.hex()}" for key in chain.private_keys[:accounts]]
        keys = LocalKeys.from_hex(private_keys)
        addresses = tuple(keys.addresses())
        await migrate.apply(postgres.tcp_dsn, timeout_s=_ADMIN_TIMEOUT_S)
        database = await stack.enter_async_context(
            asyncpg.create_pool(postgres.dsn, min_size=0, max_size=8, command_timeout=_ADMIN_TIMEOUT_S)
        )
        await database.execute(_DISK_FULL)
        strict = addresses[: plan.strict]
        pipelined = addresses[plan.strict : plan.strict + plan.pipelined]
        victims = addresses[plan.strict + plan.pipelined :]
        made = Stage(
            plan=plan,
            postgres=postgres,
            dsn=postgres.tcp_dsn,
            database=database,
            chain=lab_chain,
            chain_id=chain.chain_id,
            keys=keys,
            strict=strict,
            pipelined=pipelined,
            victims=victims,
            slots=[],
            endpoints=endpoints,
            record=record,
            settings=plan.settings(),
            config=_strict_signers(folder / "fencepost.toml", [*strict, *victims]),
            private_keys=private_keys,
            nursery=await stack.enter_async_context(nursery(logs / "nursery.log")) if IS_POSSIBLE else None,
            machine=machine(
                postgresql=await database.fetchval("SHOW server_version"),
                anvil=(await rpc.call("web3_clientVersion")).removeprefix("anvil/v"),
            ),
        )
        for number in range(1, plan.nodes + 1):
            wire = await stack.enter_async_context(db_proxy(postgres.port))
            name = f"node-{number}"
            made.slots.append(Slot(name, wire, folder / f"{name}.order", logs / f"{name}.log"))
        async with asyncio.TaskGroup() as group:
            miner = group.create_task(lab_chain.mine_for_ever(plan.block_time_s))
            yield made
            miner.cancel()


def _strict_signers(path: Path, strict: Sequence[Address]) -> Path:
    """What is said of single signers stands in a file."""
    path.write_text("".join(f'[signers."{address}"]\nmode = "strict"\n' for address in strict))
    return path


def _at_port(dsn: str, port: int) -> str:
    parts = urlsplit(dsn)
    credentials = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{credentials}@127.0.0.1:{port}"))

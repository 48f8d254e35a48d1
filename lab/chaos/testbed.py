"""The testbed of a chaos run: PostgreSQL, a chain, three endpoints and four nodes, each behind its own proxy.

A node that ends is started again. The testbed removes everything when it closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import asyncpg

from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.adapters.postgres import migrate
from fencepost.adapters.postgres.pool import DriverPool
from fencepost.adapters.signers.local import LocalKeys
from fencepost.dev.anvil import anvil_node, find_anvil
from fencepost.dev.node_process import NodeProcess, node_spec, start_from_spec
from fencepost.dev.paths import default_cache_dir
from fencepost.dev.postgres import EmbeddedPostgres, embedded_postgres
from fencepost.dev.postgres_binaries import owner_of, run_as
from fencepost.domain.ids import Address
from fencepost.errors import EmbeddedError, Unready
from lab.chaos.chain import LabChain
from lab.chaos.failpoints import ORDER_FILE
from lab.chaos.fork_server import IS_SUPPORTED, ForkServer, open_fork_server
from lab.chaos.node import SKEW_S
from lab.machine import machine
from lab.proxies.postgres_proxy import PostgresProxy, postgres_proxy
from lab.proxies.rpc_proxy import RpcProxy, SendRecord, rpc_proxy

OTHER_CHAIN_ID = 5
ENDPOINTS = 3
RESTART_PAUSE_S = 0.2
MAX_CONNECTIONS = "90"  # of the server: the nodes and the lab need half of them
_ADMIN_TIMEOUT_S = 5.0
_HEAL_TIMEOUT_S = 30.0
_SAID_CHARS = 160
GROWING_TABLES = ("journal", "managed_tx", "tx_attempt")
_DISK_FULL = """
CREATE FUNCTION lab_disk_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';
END $$"""


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a run. Everything random comes from the seed."""

    seconds: float = 60.0
    seed: int = 7
    nodes: int = 4
    strict: int = 3
    pipelined: int = 10
    victims: int = 3  # strict signers whose keys are used outside Fencepost
    required_depth: int = 2
    block_time_s: float = 0.25
    lease_s: float = 3.0
    quiet_within_s: float = 60.0
    strict_per_s: float = 0.4  # requests per second and signer
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
    """A place for a node, which is started again when it ends."""

    name: str
    proxy: PostgresProxy
    order: Path
    log: Path
    node: NodeProcess | None = None
    starts: int = 0
    is_reserved: bool = False  # by a fault
    skew_s: float = 0.0  # of the wall clock of the next process

    @property
    def is_up(self) -> bool:
        return self.node is not None and self.node.is_alive

    def signal(self, number: signal.Signals) -> None:
        if self.node is not None and self.node.is_alive:
            with contextlib.suppress(ProcessLookupError):
                self.node.process.send_signal(number)


@dataclass(slots=True)
class FaultEvent:
    """A fault that had an effect: time, kind, target and duration."""

    at_s: float
    kind: str
    target: str
    lasted_s: float = 0.0
    detail: str = ""


@dataclass(slots=True)
class Testbed:
    """The running parts of a chaos run."""

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
    other_chain_url: str  # the endpoint of another chain
    record: SendRecord
    settings: Mapping[str, str]
    config: Path
    private_keys: Sequence[str] = field(repr=False)
    machine: Mapping[str, str]
    fork_server: ForkServer | None  # None if forking is not supported
    fault_events: list[FaultEvent] = field(default_factory=list)
    foreign: set[str] = field(default_factory=set)  # hashes
    used_victims: set[Address] = field(default_factory=set)  # victims whose key was used
    protected: set[Address] = field(default_factory=set)  # those of them that are in PROTECT
    lie_is_due: bool = False  # an endpoint will lie soon: the others must work
    notes: Counter[str] = field(default_factory=Counter)
    failed_starts: Counter[str] = field(default_factory=Counter)  # by reason
    began_s: float = field(default_factory=time.time)
    is_first_start: bool = True  # before the faults a node must start

    @property
    def signers(self) -> tuple[Address, ...]:
        return (*self.strict, *self.pipelined, *self.victims)

    def rng(self, name: str) -> random.Random:
        return random.Random(f"{self.plan.seed}:{name}")

    async def start_node(self, slot: Slot, *, log: Path | None = None) -> NodeProcess:
        """Start a node in a slot."""
        order = node_spec(
            slot.name,
            dsn=_at_port(self.dsn, slot.proxy.port),
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
        if self.fork_server is not None:
            return await self.fork_server.start(order)
        return await start_from_spec(order, module="lab.chaos.node")

    async def keep_running(self, slot: Slot) -> None:
        """Start the slot's node again whenever it ends, until cancelled."""
        try:
            while True:
                slot.order.unlink(missing_ok=True)
                try:
                    slot.node = await self.start_node(slot)
                except Unready as error:
                    if self.is_first_start:
                        raise
                    self.failed_starts[start_failure(str(error))] += 1
                else:
                    slot.starts += 1
                    await slot.node.process.wait()
                await asyncio.sleep(RESTART_PAUSE_S)
        finally:
            if slot.node is not None:
                slot.signal(signal.SIGCONT)
                await slot.node.stop()

    async def promote_database(self) -> None:
        """Crash the server, and let it recover as from an archive, which starts a new timeline."""
        cluster = self.postgres.data_dir / "cluster"
        signal_file = cluster / "recovery.signal"
        signal_file.touch(mode=0o600)
        owner = owner_of(cluster)
        if owner is not None:
            os.chown(signal_file, owner.uid, owner.gid)
        await self.postgres.restart("immediate")

    async def copy_database(self) -> Path:
        """Copy the data of the running server, with the log that makes the copy consistent."""
        data_dir, owner = self.postgres.data_dir, owner_of(self.postgres.data_dir / "cluster")
        copy, password = data_dir / "copy", data_dir / "copy.pgpass"
        said = unquote(urlsplit(self.postgres.tcp_dsn).password or "")
        copy.mkdir(mode=0o700)
        password.touch(mode=0o600)
        password.write_text(f"127.0.0.1:{self.postgres.port}:*:*:{said}\n", encoding="ascii")
        if owner is not None:
            for path in (copy, password):
                os.chown(path, owner.uid, owner.gid)
        source = f"host=127.0.0.1 port={self.postgres.port} user=fencepost passfile={password}"
        program = str(self.postgres.bin_dir / "pg_basebackup")
        options = ["--checkpoint=fast", "--wal-method=stream", "--no-sync", f"--pgdata={copy}"]
        ran = await run_as(owner, [program, *options, f"--dbname={source}"], cwd=data_dir)
        if ran.returncode != 0:
            raise EmbeddedError(f"pg_basebackup failed: {ran.stderr.strip()[-600:]}")
        return copy

    async def restore_database(self, copy: Path) -> None:
        """Crash the server, and start it on the copy. The port and the server's identity stay the same."""
        cluster = self.postgres.data_dir / "cluster"
        newer = cluster.with_name("newer")
        cluster.rename(newer)  # the running server keeps using the renamed folder
        copy.rename(cluster)  # noqa: ASYNC240 - fast, and no other task runs
        await self.postgres.restart("immediate")
        await asyncio.to_thread(shutil.rmtree, newer)

    async def reject_rows(self, table: str, *, within_s: float) -> None:
        """Let a table reject inserts as if the disk were full."""
        async with self.database.acquire() as connection, connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = {int(within_s * 1000)}")
            await connection.execute(
                f"CREATE TRIGGER lab_disk_full BEFORE INSERT ON {table} EXECUTE FUNCTION lab_disk_full()"
            )

    async def accept_rows(self) -> None:
        """Let all tables accept inserts again; retry while the database fails."""
        deadline_s = time.monotonic() + _HEAL_TIMEOUT_S
        for table in GROWING_TABLES:
            while True:
                try:
                    await self.database.execute(f"DROP TRIGGER IF EXISTS lab_disk_full ON {table}")
                    break
                except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                    if time.monotonic() > deadline_s:
                        raise
                await asyncio.sleep(RESTART_PAUSE_S)

    def heal_endpoints(self) -> None:
        for endpoint in self.endpoints:
            endpoint.heal()

    async def heal(self) -> None:
        """End all faults of endpoints, proxies, nodes and tables."""
        self.heal_endpoints()
        for slot in self.slots:
            slot.order.unlink(missing_ok=True)
            slot.proxy.heal()
            slot.signal(signal.SIGCONT)
        await self.accept_rows()


@asynccontextmanager
async def open_testbed(plan: Plan, *, logs: Path, report: Callable[[str], None]) -> AsyncIterator[Testbed]:
    """Start everything, and stop it when the body ends."""
    async with AsyncExitStack() as stack:
        folder = _folder(stack)
        binary = await find_anvil(default_cache_dir(), report=report)
        report("starting PostgreSQL and the chain")
        postgres = await _start_postgres(stack, folder)
        accounts = plan.strict + plan.pipelined + plan.victims
        chain = await stack.enter_async_context(
            anvil_node(binary=binary, run_dir=folder / "anvil", accounts=accounts, extra=("--no-mining",))
        )
        rpc = JsonRpc(chain.rpc_url, timeout_s=_ADMIN_TIMEOUT_S * 2, max_body_bytes=256 * 1024 * 1024)
        stack.push_async_callback(rpc.close)
        other = await stack.enter_async_context(
            anvil_node(binary=binary, run_dir=folder / "other", chain_id=OTHER_CHAIN_ID, block_time_s=1)
        )
        lab_chain, record = LabChain(rpc), SendRecord()
        endpoints = await _start_endpoints(stack, plan, chain.rpc_url, record, lab_chain)
        private_keys = [f"0x{key.hex()}" for key in chain.private_keys[:accounts]]
        keys = LocalKeys.from_hex(private_keys)
        addresses = tuple(keys.addresses())
        database = await _open_database(stack, postgres)
        strict = addresses[: plan.strict]
        victims = addresses[plan.strict + plan.pipelined :]
        made = Testbed(
            plan=plan,
            postgres=postgres,
            dsn=postgres.tcp_dsn,
            database=database,
            chain=lab_chain,
            chain_id=chain.chain_id,
            keys=keys,
            strict=strict,
            pipelined=addresses[plan.strict : plan.strict + plan.pipelined],
            victims=victims,
            slots=[],
            endpoints=endpoints,
            other_chain_url=other.rpc_url,
            record=record,
            settings=plan.settings(),
            config=_strict_signers(folder / "fencepost.toml", [*strict, *victims]),
            private_keys=private_keys,
            fork_server=await stack.enter_async_context(open_fork_server(logs / "fork-server.log"))
            if IS_SUPPORTED
            else None,
            machine=machine(
                postgresql=await database.fetchval("SHOW server_version"),
                anvil=(await rpc.call("web3_clientVersion")).removeprefix("anvil/v"),
            ),
        )
        made.slots += await _open_slots(stack, plan, postgres, folder=folder, logs=logs)
        async with asyncio.TaskGroup() as group:
            miner = group.create_task(lab_chain.mine_for_ever(plan.block_time_s))
            yield made
            miner.cancel()


def _folder(stack: AsyncExitStack) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fencepost-chaos-"))
    folder.chmod(0o711)  # PostgreSQL may run as another user
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


async def _start_postgres(stack: AsyncExitStack, folder: Path) -> EmbeddedPostgres:
    options = {
        "track_commit_timestamp": "on",
        "fsync": "on",
        "max_connections": MAX_CONNECTIONS,
        "restore_command": "false",  # there is no archive: a promoted server has only its own log
        "recovery_target_timeline": "current",
    }
    return await stack.enter_async_context(embedded_postgres(folder / "postgres", options=options))


async def _start_endpoints(
    stack: AsyncExitStack, plan: Plan, rpc_url: str, record: SendRecord, chain: LabChain
) -> list[RpcProxy]:
    return [
        await stack.enter_async_context(
            rpc_proxy(
                f"endpoint-{number}",
                rpc_url,
                record=record,
                rng=random.Random(f"{plan.seed}:endpoint-{number}"),
                chain_lock=chain.chain_lock,
            )
        )
        for number in range(1, ENDPOINTS + 1)
    ]


async def _open_database(stack: AsyncExitStack, postgres: EmbeddedPostgres) -> DriverPool:
    await migrate.apply(postgres.tcp_dsn, timeout_s=_ADMIN_TIMEOUT_S)
    database = await stack.enter_async_context(
        asyncpg.create_pool(postgres.dsn, min_size=0, max_size=8, command_timeout=_ADMIN_TIMEOUT_S)
    )
    await database.execute(_DISK_FULL)
    return database


async def _open_slots(
    stack: AsyncExitStack, plan: Plan, postgres: EmbeddedPostgres, *, folder: Path, logs: Path
) -> list[Slot]:
    slots = []
    for number in range(1, plan.nodes + 1):
        proxy = await stack.enter_async_context(postgres_proxy(postgres.port))
        name = f"node-{number}"
        slots.append(Slot(name, proxy, folder / f"{name}.order", logs / f"{name}.log"))
    return slots


def start_failure(said: str) -> str:
    """Return why a node did not start, without the details that differ between starts.

    A node that was started on a faulty chain or database prints its reason in one line. Any other output is unexpected, and is
    returned as it is.
    """
    _, is_reason, reason = said.partition("fencepost: ")
    if not is_reason:
        return f"unexpected: {said[:_SAID_CHARS]}"
    return re.sub(r"https?://\S+", "an endpoint", reason)[:_SAID_CHARS]


def _strict_signers(path: Path, strict: Sequence[Address]) -> Path:
    """Write the settings of the strict signers into a file."""
    path.write_text("".join(f'[signers."{address}"]\nmode = "strict"\n' for address in strict))
    return path


def _at_port(dsn: str, port: int) -> str:
    parts = urlsplit(dsn)
    credentials = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{credentials}@127.0.0.1:{port}"))

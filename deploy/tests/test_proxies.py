"""The proxy examples work as they are, but for names, ports and certificates, in front of a real node."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from fencepost.application.api_keys import Scope
from fixtures.anvil import TestChain
from fixtures.api import ApiServer, open_api
from fixtures.core import eventually

Proxy = Callable[[ApiServer, Path, tuple[Path, Path]], AbstractAsyncContextManager[int]]

DEPLOY = Path(__file__).parents[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    name = ["-subj", "/CN=fencepost.example", "-addext", "subjectAltName=DNS:fencepost.example"]
    subprocess.run(
        ["openssl", "req", "-x509", *curve, "-keyout", key, "-out", certificate, "-days", "1", *name],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return certificate, key


@pytest_asyncio.fixture
async def node(dsn: str, anvil: TestChain) -> AsyncIterator[ApiServer]:
    async with open_api(dsn, anvil) as opened:
        yield opened


@asynccontextmanager
async def running(port: int, *command: str) -> AsyncIterator[None]:
    """Run a proxy until the end of the block, once it accepts connections."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )

    async def accepts() -> bool:
        if process.returncode is not None:
            assert process.stdout is not None
            raise AssertionError((await process.stdout.read()).decode())
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True

    try:
        await eventually(accepts, why=f"{command[0]} does not listen")
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


@asynccontextmanager
async def nginx(node: ApiServer, folder: Path, certificate: tuple[Path, Path]) -> AsyncIterator[int]:
    port = free_port()
    example = (DEPLOY / "nginx" / "fencepost.conf").read_text()
    changes = {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "127.0.0.1:8420": node.url.removeprefix("http://"),
        "/etc/nginx/tls/fencepost.crt": str(certificate[0]),
        "/etc/nginx/tls/fencepost.key": str(certificate[1]),
    }
    for old, new in changes.items():
        assert old in example
        example = example.replace(old, new)
    (folder / "fencepost.conf").write_text(example)
    paths = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = folder / "nginx.conf"
    main.write_text(
        f"daemon off; pid {folder}/nginx.pid; error_log stderr; events {{}}"
        f" http {{ access_log off; {paths} include {folder}/fencepost.conf; }}"
    )
    async with running(port, "nginx", "-e", "stderr", "-c", str(main)):
        yield port


@asynccontextmanager
async def caddy(node: ApiServer, folder: Path, certificate: tuple[Path, Path]) -> AsyncIterator[int]:
    port = free_port()
    example = (DEPLOY / "caddy" / "Caddyfile").read_text()
    changes = {
        "fencepost.example {": f"https://fencepost.example:{port} {{\n\tbind 127.0.0.1\n\ttls {certificate[0]} {certificate[1]}",
        "127.0.0.1:8420": node.url.removeprefix("http://"),
    }
    for old, new in changes.items():
        assert old in example
        example = example.replace(old, new)
    file = folder / "Caddyfile"
    file.write_text("{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + example)
    async with running(port, "caddy", "run", "--adapter", "caddyfile", "--config", str(file)):
        yield port


@pytest.mark.parametrize("proxy", [nginx, caddy])
async def test_callers_need_a_key_behind_a_proxy(
    node: ApiServer, tmp_path: Path, certificate: tuple[Path, Path], *, proxy: Proxy
) -> None:
    trust = ssl.create_default_context(cafile=str(certificate[0]))
    async with proxy(node, tmp_path, certificate) as port:
        resolver = aiohttp.TCPConnector(ssl=trust, resolver=_Loopback())
        async with aiohttp.ClientSession(f"https://fencepost.example:{port}", connector=resolver) as session:
            async with session.get("/api/v1/signers") as keyless:
                assert keyless.status == 403  # the node is open to local programs, not to a proxy
            token = await node.key(Scope.TX_WRITE)
            session.headers["Authorization"] = f"Bearer {token}"
            async with session.get("/api/v1/signers") as listed:
                assert listed.status == 200
                assert (await listed.json())["items"]
            body = node.transfer("order-7")
            async with session.post("/api/v1/tx?wait=finished", json=body) as sent:
                assert sent.status == 200
                assert (await sent.json())["state"] == "CONFIRMED"
            async with session.get("/api/v1/signers", headers={"Authorization": "Bearer wrong"}) as wrong:
                assert wrong.status == 401


class _Loopback(aiohttp.abc.AbstractResolver):
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[aiohttp.abc.ResolveResult]:
        return [
            {"hostname": host, "host": "127.0.0.1", "port": port, "family": family, "proto": 0, "flags": 0}
        ]

    async def close(self) -> None:
        """Hold nothing open."""

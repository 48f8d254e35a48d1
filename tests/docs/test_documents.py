"""Check the documents: their snippets run, their commands exist, their links lead to files."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from fencepost.cli.main import cli
from fencepost.settings import reference_markdown
from fixtures.anvil import TestChain
from fixtures.client import node_at

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets(language: str) -> list[tuple[str, str]]:
    return [
        (f"{document.relative_to(ROOT)}:{index}", body)
        for document in DOCUMENTS
        for index, (kind, body) in enumerate(_FENCE.findall(document.read_text()))
        if kind == language
    ]


@pytest.mark.parametrize(
    ("name", "code"), snippets("python"), ids=lambda value: value if len(value) < 60 else ""
)
async def test_python_snippets_run(name: str, code: str, dsn: str, anvil: TestChain, tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "FENCEPOST_DATABASE_DSN": dsn,
        "FENCEPOST_RPC_URL": anvil.rpc_url,
        "FENCEPOST_CHAIN_ID": str(anvil.chain_id),
        "MY_KEY": "0x" + anvil.private_keys[0].hex(),
    }
    async with AsyncExitStack() as stack:
        if "FENCEPOST_URL" in code:
            node = node_at(dsn, anvil, tmp_path / "node.log", events__webhook__allow_private="true")
            environ["FENCEPOST_URL"] = await stack.enter_async_context(node)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            code,
            env=environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            out, errors = await process.communicate()
    assert process.returncode == 0, f"{name}: {errors.decode()}"
    assert "CONFIRMED" in out.decode()


def test_commands_in_the_documents_exist() -> None:
    named = {
        word
        for _, body in snippets("console")
        for word in re.findall(r"^\$ (?:\./dev run )?fencepost ([a-z-]+)", body, re.MULTILINE)
    }
    named |= {
        word
        for document in DOCUMENTS
        for word in re.findall(r"`fencepost ([a-z][a-z-]*)[^`]*`", document.read_text())
    }
    assert named
    assert named <= set(cli.list_commands(None))  # type: ignore[arg-type]  # the list does not depend on a context


def test_dev_verbs_in_the_documents_exist() -> None:
    script = (ROOT / "dev").read_text()
    named = {word for document in DOCUMENTS for word in re.findall(r"\./dev ([a-z]+)", document.read_text())}
    assert named
    assert all(f"\n  {verb}" in script for verb in named)


def test_the_first_screen_of_the_readme_has_both_commands() -> None:
    head = "\n".join((ROOT / "README.md").read_text().splitlines()[:20])
    assert "./dev demo" in head
    assert "./dev test" in head


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_lead_to_existing_files(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", document.read_text())
    missing = [
        target for target in targets if "://" not in target and not (document.parent / target).exists()
    ]
    assert not missing


def test_the_settings_page_is_up_to_date() -> None:
    recorded = (ROOT / "docs" / "settings.md").read_text()
    assert recorded == reference_markdown(), "run: ./dev run fencepost config --markdown > docs/settings.md"

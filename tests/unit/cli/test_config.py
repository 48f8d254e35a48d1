"""`fencepost config`: a table, JSON, an example; none contains a secret."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fencepost.cli.config import config
from fencepost.errors import SettingError
from fencepost.settings import CHAIN_KEYS, DECLARED, example_toml

SECRETS = {
    "FENCEPOST_DATABASE_DSN": "postgresql://ada:hush@db:5432/ledger",
    "FENCEPOST_RPC_URL": "https://[::1]:8545/v3/hush,wss://node/hush",
    "FENCEPOST_KEYS_REMOTE_URL": "https://signer/hush",
    "FENCEPOST_KEY_ONE": "0x" + "ab" * 32,
}


@pytest.fixture(autouse=True)
def _nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("FENCEPOST_")]:
        monkeypatch.delenv(name)


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(config, arguments, env=env)


def rows(output: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in output.splitlines() if line.strip()}


def test_the_table_has_every_setting_with_value_and_source() -> None:
    Path("fencepost.toml").write_text('log.level = "debug"')
    result = run(env={"FENCEPOST_LEASE_DURATION": "20"})
    assert result.exit_code == 0
    table = rows(result.output)
    assert set(DECLARED) | {f"chains.default.{key}" for key in CHAIN_KEYS} <= set(table)
    assert table["lease.duration"] == ["20s", "FENCEPOST_LEASE_DURATION"]
    assert table["log.level"] == ["debug", "fencepost.toml"]
    assert table["api.port"] == ["8420", "default"]
    assert table["node.id"] == ['""', "default"]
    assert table["file:"] == [str(Path.cwd() / "fencepost.toml")]


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_secrets_are_masked(arguments: list[str]) -> None:
    output = run(*arguments, env=SECRETS).output
    assert "hush" not in output
    assert "abab" not in output
    for shown in (
        "postgresql://***@db:5432/ledger",
        "https://[::1]:8545/***",
        "https://signer/***",
        "FENCEPOST_KEY_ONE",
    ):
        assert shown in output


def test_json_has_typed_values() -> None:
    result = run("--json", env={"FENCEPOST_API_PORT": "1", **SECRETS})
    reported = json.loads(result.output)
    assert reported["api.port"] == {"value": 1, "source": "FENCEPOST_API_PORT"}
    assert reported["api.expose_nonce"] == {"value": False, "source": "default"}
    assert reported["lease.renew_interval"] == {"value": "2.5s", "source": "default"}
    assert reported["gas.estimate_factor"] == {"value": 1.2, "source": "default"}
    assert reported["chains.default.rpc_urls"]["value"] == ["https://[::1]:8545/***", "wss://node/***"]
    assert reported["keys.private_keys"] == {"value": "***", "source": "FENCEPOST_KEY_ONE"}


def test_signers_with_their_own_policy_are_listed() -> None:
    address = "0x" + "ab" * 20
    Path("mine.toml").write_text(f'signers.{address}.mode = "pipelined"')
    table = rows(run("--config", "mine.toml").output)
    assert table[f"signers.{address}.mode"] == ["pipelined", "mine.toml"]


def test_the_example_is_complete_even_with_invalid_settings() -> None:
    result = run("--example", env={"FENCEPOST_API_PORT": "x"})
    assert (result.exit_code, result.output) == (0, example_toml())


@pytest.mark.parametrize(
    ("arguments", "env", "expected"),
    [
        (
            [],
            {"FENCEPOST_API_PORT": "x"},
            "api.port = 'x' (FENCEPOST_API_PORT): must be a whole number from 0 to 65535",
        ),
        (["--config", "nowhere.toml"], {}, "can't read nowhere.toml: No such file or directory"),
    ],
)
def test_an_invalid_setting_is_raised_as_a_one_line_error(
    arguments: list[str], env: dict[str, str], expected: str
) -> None:
    result = run(*arguments, env=env)
    assert isinstance(result.exception, SettingError)
    assert str(result.exception) == expected
    assert result.output == ""

"""The settings file: which one is read, what it may contain, and how errors are reported."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fencepost.errors import SettingError
from fencepost.settings import example_toml, load
from unit.settings.loading import ADDRESS, ALL, from_environ, from_toml, one_line, refusal_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "lease.durration = 1",
            "lease.durration: unknown key (fencepost.toml); did you mean lease.duration?",
        ),
        ("[leese]\nduration = 1", "leese: unknown key (fencepost.toml); did you mean lease?"),
        ("port = 1", "port: unknown key (fencepost.toml); did you mean api.port?"),
        (
            "chains.main.rpc_url = []",
            "chains.main.rpc_url: unknown key (fencepost.toml); did you mean chains.main.rpc_urls?",
        ),
        (f"signers.{ADDRESS}.mod = 1", f"did you mean signers.{ADDRESS.lower()}.mode?"),
        ("qqqqqqqqqqqq = 1", "run `fencepost config --example` for a list"),
        ('"a\\nb" = 1', '"a\\nb": unknown key'),
        ("lease = 3", "lease: must be a table, not a value (fencepost.toml); write [lease]"),
        ("chains = 3", "chains: must be a table"),
        ("chains.main = 3", "chains.main: must be a table"),
        ("lease.duration.x = 3", "lease.duration = a table (fencepost.toml): must be a duration"),
        ('chains."a b".id = 3', 'chains.NAME = "a b" (fencepost.toml): must be a name'),
        ("signers.0x12.mode = 3", "signers.ADDRESS = 0x12 (fencepost.toml): must be 0x and 40 hex digits"),
        (
            f"signers.{ADDRESS}.mode = 3",
            f"signers.{ADDRESS.lower()}.mode = 3 (fencepost.toml): must be strict or pipelined",
        ),
        (f"api.port = 0x{'f' * 9000}", "api.port = a huge number (fencepost.toml): must be"),
    ],
)
def test_a_forbidden_content_is_rejected(text: str, expected: str) -> None:
    assert expected in refusal_of(text)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'[lease]\nduration = "10s\n', "line 2, column 16"),
        (b"[lease]\n\nduration 3\n", "line 3, column 10"),
        (b"[lease", "line 1, column 7"),
        (b"[api]\nhost = '\xff'\n", "line 2, column 9: not utf-8"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"a = " + b"9" * 5000, "too many digits"),
        (b"#" * (1024 * 1024 + 1), "larger than 1048576 bytes"),
    ],
)
def test_a_syntax_error_is_one_line_with_file_line_and_column(content: bytes, expected: str) -> None:
    path = Path("broken.toml")
    path.write_bytes(content)
    with pytest.raises(SettingError) as caught:
        load(toml_path=path, environ={}, flags={})
    message = one_line(caught.value)
    assert "broken.toml" in message
    assert expected in message


def test_a_given_path_outranks_the_variable_and_the_default_file() -> None:
    Path("fencepost.toml").write_text("api.port = 1")
    Path("named.toml").write_text("api.port = 2")
    Path("given.toml").write_text("api.port = 3")
    by_variable = {"FENCEPOST_CONFIG": "named.toml"}
    assert load(toml_path=None, environ={}, flags={}).settings.api.port == 1
    assert load(toml_path=None, environ={"FENCEPOST_CONFIG": ""}, flags={}).settings.api.port == 1
    loaded = load(toml_path=None, environ=by_variable, flags={})
    assert (loaded.settings.api.port, loaded.sources["api.port"], loaded.file) == (
        2,
        "named.toml",
        Path("named.toml"),
    )
    assert load(toml_path=Path("given.toml"), environ=by_variable, flags={}).settings.api.port == 3


def test_a_named_file_must_exist() -> None:
    with pytest.raises(SettingError, match=r"can't read nowhere\.toml: No such file"):
        from_environ(FENCEPOST_CONFIG="nowhere.toml")
    with pytest.raises(SettingError, match="can't read"):
        load(toml_path=Path(), environ={}, flags={})


def test_numbers_in_the_file_are_exact() -> None:
    settings = from_toml(
        "fees.cap = 0.1\nlease.skew_allowance = 0.5\nnonce.state_timeout = 7\ngas.estimate_factor = 2"
    ).settings
    assert settings.fees.cap_wei == 10**8
    assert (settings.lease.skew_allowance_s, settings.nonce.state_timeout_s) == (0.5, 7.0)
    assert settings.gas.estimate_factor == 2.0


def uncommented(example: str) -> str:
    lines = example.splitlines()
    return "\n".join(
        line[1:] if line.startswith("#") and not line.startswith("# ") else line for line in lines
    )


def test_the_uncommented_example_has_every_default_and_the_original_sets_nothing() -> None:
    defaults = load(toml_path=None, environ={}, flags={})
    example = uncommented(example_toml())
    loaded = from_toml(example)
    assert loaded.settings == defaults.settings
    assert set(loaded.sources) == set(ALL)
    assert set(loaded.sources.values()) == {"fencepost.toml"}
    as_it_stands = tomllib.loads(example_toml())
    assert as_it_stands.pop("fees") == {"bump": {}, "percentiles": {}, "gas_station": {}}
    assert as_it_stands.pop("events") == {"webhook": {}}
    assert not any(as_it_stands.values())


def test_an_error_in_the_file_is_reported_even_if_the_environment_overrides_it() -> None:
    with pytest.raises(SettingError, match=r"api\.port = 'x' \(fencepost\.toml\)"):
        from_toml('api.port = "x"', environ={"FENCEPOST_API_PORT": "1"})

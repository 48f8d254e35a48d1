"""Settings: every key is read from every source, and every invalid value has its own error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import SettingError
from fencepost.settings import DECLARED, Settings, load
from fencepost.settings.display import value_at
from fencepost.settings.numeric_types import (
    Duration,
    DurationList,
    Gwei,
    Integer,
    IntegerOr,
    Number,
    duration_text,
)
from fencepost.settings.types import (
    Choice,
    Dsn,
    FilePath,
    Flag,
    HeaderList,
    Secret,
    SettingType,
    Text,
    Url,
    UrlList,
)
from unit.settings.loading import ALL, from_environ, from_toml, one_line, refusal_of

# TOML values that each type rejects: the first has a wrong type, the others are out of range.
BREAKING: dict[type, Callable[[Any], list[str]]] = {
    Flag: lambda _: ["3", '"nonesuch"'],
    Choice: lambda _: ["7", '"nonesuch"'],
    Integer: lambda kind: ['"many"', str(kind.low - 1), str(kind.high + 1)],
    IntegerOr: lambda kind: ["1.5", '"nonesuch"', str(kind.low - 1), str(kind.high + 1)],
    Number: lambda kind: [
        '"many"',
        *around(kind.low, kind.high),
        "nan",
        "inf",
        "1e999999999",
        "1e9999999999999999999",
    ],
    Duration: lambda kind: [
        *("true", *around(kind.low_s, kind.high_s), f'"{kind.high_s + 1}s"'),
        *('"-1s"', '"10 sec"', '""', "inf", "1e-999999999"),
    ],
    DurationList: lambda kind: [
        *('"5s"', "[]", "[true]", '["-1s"]', f'["{kind.high_s + 1}s"]'),
        json.dumps(["1s"] * (kind.max_items + 1)),
    ],
    Gwei: lambda kind: [
        *(
            "true",
            "-1",
            str(kind.high_wei + 1),
            '"0.0000000001"',
            '"1e3"',
            "nan",
            "1e999999999",
            "1e-999999999",
        ),
    ],
    Text: lambda kind: ["7", json.dumps("x" * (kind.length_max + 1)), '"a b"', '"a\\nb"'],
    Secret: lambda _: ["7", json.dumps("hush" * 300), '"hush hush"', '"hush\\n"'],
    FilePath: lambda _: ["7", json.dumps("x" * 1025), '"a\\nb"'],
    Dsn: lambda _: [
        *("7", '"mysql://u:hush@h/db"', '"host=h password=hush"'),
        *('"postgresql://u:hu/sh@h/db"', '"postgresql://u:hush@h:99999/d"'),
    ],
    Url: lambda _: ["7", '"ftp://h/hush"', '"http://"', '"https://h hush"', '"https://h/#hush"'],
    UrlList: lambda _: [
        *('"http://h/hush"', '["ftp://h/hush"]', "[1]", '[""]', '["http://h/hush", "http://h/hush"]'),
        json.dumps([f"http://h{number}" for number in range(33)]),
    ],
    HeaderList: lambda _: ['"X: hush"', "[1]", '["hush"]', '["X: "]', '["X Y: hush"]', '["X: hu\\nsh"]'],
}


def around(low: float, high: float) -> list[str]:
    return [str(low - 0.01), str(high + 0.01)]


BROKEN = [
    pytest.param(key, value, id=f"{key}={value[:40]}")
    for key, declared in ALL.items()
    for value in BREAKING[type(declared.rule.kind)](declared.rule.kind)
]


@pytest.mark.parametrize(("key", "value"), BROKEN)
def test_an_invalid_value_in_the_file_is_rejected_with_key_source_and_allowed_values(
    key: str, value: str
) -> None:
    message = refusal_of(f"{key} = {value}")
    assert message.startswith(f"{key} = ")
    assert "(fencepost.toml)" in message
    assert message.endswith(f"must be {ALL[key].rule.kind.allowed}")
    assert "hush" not in message


@pytest.mark.parametrize("layer", ["environment", "flag"])
@pytest.mark.parametrize("key", DECLARED)
def test_an_invalid_text_is_rejected_with_its_variable_or_flag(key: str, layer: str) -> None:
    declared = DECLARED[key]
    text = "\x00hush" * 300
    environ, flags = ({declared.variable: text}, {}) if layer == "environment" else ({}, {key: text})
    with pytest.raises(SettingError) as caught:
        load(toml_path=None, environ=environ, flags=flags)
    message = one_line(caught.value)
    assert key in message
    assert f"({declared.variable if environ else declared.flag})" in message
    assert declared.rule.kind.allowed in message
    assert len(message) < 400
    assert ("hush" not in message) or not declared.rule.kind.secret


# A value per type that is no default: its text and its Python value. Flags have only their opposite.
ANOTHER: dict[type, Callable[[Any], tuple[str, object]]] = {
    Integer: lambda kind: (str(kind.low + 3), kind.low + 3),
    IntegerOr: lambda kind: (kind.words[0], kind.words[0]),
    Number: lambda kind: (f"{kind.high:g}", kind.high),
    Duration: lambda _: ("1500ms", 1.5),
    DurationList: lambda _: ("0s, 1500ms", (0.0, 1.5)),
    Gwei: lambda _: ("1.000000001", 1_000_000_001),
    Choice: lambda kind: (kind.choices[-1], kind.choices[-1]),
    Text: lambda kind: _other_text(kind.what),
    Secret: lambda _: ("other" * 8, "other" * 8),
    FilePath: lambda _: ("other", "other"),
    Dsn: lambda _: ("postgresql://u:p@h:5432/d", "postgresql://u:p@h:5432/d"),
    Url: lambda kind: (f"{kind.schemes[-1]}://h/x", f"{kind.schemes[-1]}://h/x"),
    UrlList: lambda _: ("https://h/x,https://h/y", ("https://h/x", "https://h/y")),
    HeaderList: lambda _: ("X-A: b\nC: d, e", (("X-A", "b"), ("C", "d, e"))),
}


def _other_text(what: str) -> tuple[str, str]:
    text = "an.other:one" if ":" in what else "/other/one" if "pointer" in what else "other"
    return text, text


def another(kind: SettingType[Any], default: object) -> tuple[str, object]:
    if isinstance(kind, Flag):
        return ("off", False) if default else ("on", True)
    return ANOTHER[type(kind)](kind)


COMPANIONS: dict[str, dict[str, str]] = {
    "default_chain": {"rpc_url": "http://127.0.0.1:1"},
    "lease.duration": {"lease.renew_interval": "100ms"},
    "fees.source": {"fees.fixed_fee_cap": "1"},
    "keys.keystore_dir": {"keys.keystore_password_file": "p"},
    "routing.forward": {"routing.secret": "s" * 32},
}


@pytest.mark.parametrize("key", DECLARED)
def test_each_setting_is_read_from_file_environment_and_flag_in_that_order(key: str) -> None:
    declared = DECLARED[key]
    kind = declared.rule.kind
    companions = COMPANIONS.get(key, {})
    text, expected = another(kind, declared.rule.default)
    default_text = kind.plain(kind.parse(declared.rule.default))
    as_variable = ",".join(default_text) if isinstance(default_text, list) else str(default_text).lower()
    in_file = kind.from_text(text) if isinstance(kind, HeaderList) else expected
    literal = json.dumps(text if isinstance(kind, Duration | Gwei) else in_file)

    loaded = from_toml(f"{key} = {literal}", flags=companions)
    assert (value_at(loaded.settings, key), loaded.sources[key]) == (expected, "fencepost.toml")

    file_says_default = f"{key} = {json.dumps(default_text)}"
    loaded = from_toml(file_says_default, environ={declared.variable: text}, flags=companions)
    assert (value_at(loaded.settings, key), loaded.sources[key]) == (expected, declared.variable)

    environ = {declared.variable: as_variable}
    loaded = from_toml(file_says_default, environ=environ, flags={**companions, key: text})
    assert (value_at(loaded.settings, key), loaded.sources[key]) == (expected, declared.flag)


def test_without_sources_every_setting_has_its_default() -> None:
    loaded = load(toml_path=None, environ={"HOME": "/home/ada"}, flags={})
    assert loaded.settings == Settings()
    assert loaded.file is None
    assert loaded.sources == dict.fromkeys(ALL, "default")


def test_values_are_typed() -> None:
    settings = Settings()
    assert settings.lease.duration_s == 10.0
    assert settings.fees.cap_wei == 500 * 10**9
    assert settings.fees.bump.after_resubmits == 3
    assert settings.confirmations.required == 20
    assert settings.gas.estimate_factor == 1.2
    assert settings.chains["default"].poll_interval_s == 1.0


def test_names_of_variables_and_flags_are_unique_and_match_no_private_key() -> None:
    variables = [declared.variable for declared in DECLARED.values()]
    variables += ["FENCEPOST_CONFIG", "FENCEPOST_RPC_URL", "FENCEPOST_CHAIN_ID"]
    assert len(set(variables)) == len(variables)
    flags = [declared.flag for declared in DECLARED.values()]
    assert len({*flags, "--rpc-url", "--chain-id"}) == len(flags) + 2
    assert not [name for name in variables if name.startswith("FENCEPOST_KEY_")]
    assert DECLARED["fees.bump.enabled"].variable == "FENCEPOST_FEES_BUMP_ENABLED"
    assert DECLARED["client.urls"].variable == "FENCEPOST_URL"
    assert DECLARED["client.api_key"].variable == "FENCEPOST_API_KEY"


def test_the_python_name_ends_with_the_unit() -> None:
    for declared in ALL.values():
        assert declared.attribute.endswith(declared.rule.kind.suffix)
        assert declared.attribute.removesuffix(declared.rule.kind.suffix) == declared.key


def test_an_unknown_variable_or_flag_is_rejected_with_the_nearest_name_and_without_its_value() -> None:
    with pytest.raises(SettingError) as caught:
        from_environ(FENCEPOST_LEASE_DURATON="hush")
    assert one_line(caught.value) == (
        "FENCEPOST_LEASE_DURATON: unknown variable (environment); did you mean FENCEPOST_LEASE_DURATION?"
    )
    with pytest.raises(SettingError, match="for a list"):
        from_environ(FENCEPOST_QQQQQQ="1")
    with pytest.raises(SettingError, match=r"did you mean lease\.duration\?"):
        load(toml_path=None, environ={}, flags={"lease.duraton": "1"})


@given(st.integers(min_value=0, max_value=86_400_000))
def test_durations_round_trip(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert Duration(0, 86400).parse(duration_text(seconds)) == seconds


@given(st.integers(min_value=0, max_value=10**15))
def test_prices_round_trip(wei: int) -> None:
    kind = Gwei(0, 10**15)
    assert kind.parse(kind.plain(wei)) == wei


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("250ms", 0.25), ("2m", 120), ("1h", 3600), ("3", 3), ("1.5", 1.5), (" 2 s ", 2)],
)
def test_every_duration_format_is_read(text: str, seconds: float) -> None:
    assert from_environ(FENCEPOST_NONCE_STATE_TIMEOUT=text).settings.nonce.state_timeout_s == seconds


def test_the_bounds_themselves_are_allowed() -> None:
    for key, declared in ALL.items():
        kind = declared.rule.kind
        if isinstance(kind, Duration):
            for bound_s in (kind.low_s, kind.high_s):
                assert kind.parse(duration_text(bound_s)) == bound_s, key
        elif isinstance(kind, Integer | IntegerOr | Number):
            assert kind.parse(kind.low) == kind.low, key
            assert kind.parse(kind.high) == kind.high, key


def test_a_path_may_begin_with_a_tilde() -> None:
    loaded = from_environ(HOME="/home/ada", FENCEPOST_KEYS_FILE="~/keys", FENCEPOST_EMBEDDED_DATA_DIR="~")
    assert (loaded.settings.keys.file, loaded.settings.embedded.data_dir) == ("/home/ada/keys", "/home/ada")
    assert from_environ(FENCEPOST_KEYS_FILE="~/keys").settings.keys.file == str(Path.home() / "keys")
    assert from_environ(FENCEPOST_KEYS_FILE="~ada/keys").settings.keys.file == "~ada/keys"


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_API_PORT", "4321")
    assert load().settings.api.port == 4321

"""Settings: every key is read from every layer, and every key says what is wrong when it is broken."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.domain.ids import parse_address
from fencepost.errors import SettingError
from fencepost.settings import (
    CHAIN_KEYS,
    DECLARED,
    Loaded,
    Settings,
    example_toml,
    load,
    mask,
    mask_dsn,
    mask_url,
)
from fencepost.settings.display import value_at
from fencepost.settings.kinds import Choice, Dsn, FilePath, Flag, Kind, Secret, Text, Url, UrlList
from fencepost.settings.quantities import Duration, Gwei, Number, Whole, WholeOr, duration_text

ALL = {**DECLARED, **{f"chains.default.{key}": declared for key, declared in CHAIN_KEYS.items()}}
KEY_ONE = "0x" + "11" * 32
ADDRESS = "0x" + "aB" * 20


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def from_toml(
    text: str, *, environ: Mapping[str, str] | None = None, flags: Mapping[str, str] | None = None
) -> Loaded:
    path = Path("fencepost.toml")
    path.write_text(text)
    return load(toml_path=path, environ=environ or {}, flags=flags or {})


def from_environ(**variables: str) -> Loaded:
    return load(toml_path=None, environ=variables, flags={})


def refusal_of(text: str) -> str:
    with pytest.raises(SettingError) as caught:
        from_toml(text)
    return one_line(caught.value)


def one_line(error: SettingError) -> str:
    message = str(error)
    assert "\n" not in message
    return message


# For each kind TOML values that it refuses: the first of a wrong type, the others of a right one but out of range.
BREAKING: dict[type, Callable[[Any], list[str]]] = {
    Flag: lambda _: ["3", '"nonesuch"'],
    Choice: lambda _: ["7", '"nonesuch"'],
    Whole: lambda kind: ['"many"', str(kind.low - 1), str(kind.high + 1)],
    WholeOr: lambda kind: ["1.5", '"nonesuch"', str(kind.low - 1), str(kind.high + 1)],
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
}


def around(low: float, high: float) -> list[str]:
    return [str(low - 0.01), str(high + 0.01)]


BROKEN = [
    pytest.param(key, value, id=f"{key}={value[:40]}")
    for key, declared in ALL.items()
    for value in BREAKING[type(declared.rule.kind)](declared.rule.kind)
]


@pytest.mark.parametrize(("key", "value"), BROKEN)
def test_a_broken_value_in_the_file_is_refused_with_key_source_and_what_is_allowed(
    key: str, value: str
) -> None:
    message = refusal_of(f"{key} = {value}")
    assert message.startswith(f"{key} = ")
    assert "(fencepost.toml)" in message
    assert message.endswith(f"must be {ALL[key].rule.kind.allowed}")
    assert "hush" not in message


@pytest.mark.parametrize("layer", ["environment", "flag"])
@pytest.mark.parametrize("key", DECLARED)
def test_a_broken_text_is_refused_with_its_variable_or_flag(key: str, layer: str) -> None:
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


# For each kind a value that is no default: its text, and what it is in Python. Flags have only their opposite.
ANOTHER: dict[type, Callable[[Any], tuple[str, object]]] = {
    Whole: lambda kind: (str(kind.low + 3), kind.low + 3),
    WholeOr: lambda kind: (kind.words[0], kind.words[0]),
    Number: lambda _: ("2.5", 2.5),
    Duration: lambda _: ("800ms", 0.8),
    Gwei: lambda _: ("1.000000001", 1_000_000_001),
    Choice: lambda kind: (kind.choices[-1], kind.choices[-1]),
    Text: lambda _: ("other", "other"),
    Secret: lambda _: ("other" * 8, "other" * 8),
    FilePath: lambda _: ("other", "other"),
    Dsn: lambda _: ("postgresql://u:p@h:5432/d", "postgresql://u:p@h:5432/d"),
    Url: lambda kind: (f"{kind.schemes[-1]}://h/x", f"{kind.schemes[-1]}://h/x"),
    UrlList: lambda _: ("https://h/x,https://h/y", ("https://h/x", "https://h/y")),
}


def another(kind: Kind[Any], default: object) -> tuple[str, object]:
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
    literal = json.dumps(text if isinstance(kind, Duration | Gwei) else expected)

    loaded = from_toml(f"{key} = {literal}", flags=companions)
    assert (value_at(loaded.settings, key), loaded.sources[key]) == (expected, "fencepost.toml")

    file_says_default = f"{key} = {json.dumps(default_text)}"
    loaded = from_toml(file_says_default, environ={declared.variable: text}, flags=companions)
    assert (value_at(loaded.settings, key), loaded.sources[key]) == (expected, declared.variable)

    environ = {declared.variable: as_variable}
    loaded = from_toml(file_says_default, environ=environ, flags={**companions, key: text})
    assert (value_at(loaded.settings, key), loaded.sources[key]) == (expected, declared.flag)


def test_without_anything_all_is_default() -> None:
    loaded = load(toml_path=None, environ={"HOME": "/home/ada"}, flags={})
    assert loaded.settings == Settings()
    assert loaded.file is None
    assert loaded.sources == dict.fromkeys(ALL, "default")


def test_typed_values() -> None:
    settings = Settings()
    assert settings.lease.duration_s == 10.0
    assert settings.fees.cap_wei == 500 * 10**9
    assert settings.fees.bump.after_resubmits == 3
    assert settings.confirmations.required == 20
    assert settings.gas.estimate_factor == 1.2
    assert settings.chains["default"].poll_interval_s == 1.0


def test_names_of_variables_and_flags_are_unique_and_no_private_key_is_mistaken() -> None:
    variables = [declared.variable for declared in DECLARED.values()]
    variables += ["FENCEPOST_CONFIG", "FENCEPOST_RPC_URL", "FENCEPOST_CHAIN_ID"]
    assert len(set(variables)) == len(variables)
    flags = [declared.flag for declared in DECLARED.values()]
    assert len({*flags, "--rpc-url", "--chain-id"}) == len(flags) + 2
    assert not [name for name in variables if name.startswith("FENCEPOST_KEY_")]
    assert DECLARED["fees.bump.enabled"].variable == "FENCEPOST_FEES_BUMP_ENABLED"
    assert DECLARED["client.urls"].variable == "FENCEPOST_URL"
    assert DECLARED["client.api_key"].variable == "FENCEPOST_API_KEY"


def test_the_name_in_python_carries_the_unit_of_its_kind() -> None:
    for declared in ALL.values():
        assert declared.attribute.endswith(declared.rule.kind.suffix)
        assert declared.attribute.removesuffix(declared.rule.kind.suffix) == declared.key


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
        ("qqqqqqqqqqqq = 1", "`fencepost config --example` lists all there are"),
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
def test_what_the_file_may_not_say(text: str, expected: str) -> None:
    assert expected in refusal_of(text)


def test_an_unknown_variable_or_flag_is_refused_with_the_nearest_name_and_without_its_value() -> None:
    with pytest.raises(SettingError) as caught:
        from_environ(FENCEPOST_LEASE_DURATON="hush")
    assert one_line(caught.value) == (
        "FENCEPOST_LEASE_DURATON: unknown variable (environment); did you mean FENCEPOST_LEASE_DURATION?"
    )
    with pytest.raises(SettingError, match="lists all there are"):
        from_environ(FENCEPOST_QQQQQQ="1")
    with pytest.raises(SettingError, match=r"did you mean lease\.duration\?"):
        load(toml_path=None, environ={}, flags={"lease.duraton": "1"})


def test_a_flag_may_name_a_key_of_a_chain() -> None:
    flags = {"rpc_url": "http://localhost:1", "chains.default.poll_interval": "50ms"}
    chains = load(toml_path=None, environ={}, flags=flags).settings.chains
    assert list(chains) == ["default"]
    assert chains["default"].poll_interval_s == 0.05
    assert chains["default"].rpc_urls == ("http://localhost:1",)
    with pytest.raises(SettingError, match=r"did you mean chains\.default\.poll_interval\?"):
        load(toml_path=None, environ={}, flags={"chains.default.poll_intervall": "1"})
    with pytest.raises(SettingError, match=r"chains\.default\.poll_interval"):
        load(toml_path=None, environ={}, flags={"chains.default.poll_interval": "soon"})


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
def test_a_broken_file_is_one_line_with_file_line_and_column(content: bytes, expected: str) -> None:
    path = Path("broken.toml")
    path.write_bytes(content)
    with pytest.raises(SettingError) as caught:
        load(toml_path=path, environ={}, flags={})
    message = one_line(caught.value)
    assert "broken.toml" in message
    assert expected in message


def test_which_file_is_read() -> None:
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


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            {"lease.duration": "4s"},
            "(default): must be less than half of lease.duration, for lease.duration = 4s (--lease-duration)",
        ),
        (
            {"lease.renew_interval": "5s"},
            "lease.renew_interval = 5s (--lease-renew-interval): must be less than half",
        ),
        (
            {"fees.source": "fixed"},
            "fees.fixed_fee_cap = 0 (default): must be above 0, for fees.source = fixed",
        ),
        (
            {"fees.source": "fixed", "fees.fixed_fee_cap": "2", "fees.fixed_tip": "2.5"},
            "fees.fixed_tip = 2.5 (--fees-fixed-tip): must be at most the fee cap, for fees.fixed_fee_cap = 2 ",
        ),
        (
            {"fees.source": "fixed", "fees.fixed_fee_cap": "501"},
            "fees.fixed_fee_cap = 501 (--fees-fixed-fee-cap): must be at most the cap of all prices, for fees.cap = 500 ",
        ),
        (
            {"fees.bump.enabled": "true", "resubmit.enabled": "off"},
            "fees.bump.enabled = true (--fees-bump-enabled): must be false",
        ),
        (
            {"fees.bump.enabled": "true", "resubmit.max_attempts": "2"},
            "fees.bump.after_resubmits = 3 (default): must be at most the limit of resubmits, for resubmit.max_attempts = 2 ",
        ),
        (
            {"keys.keystore_dir": "k"},
            'keys.keystore_password_file = "" (default): must be the path of a file',
        ),
        (
            {"default_chain": "main"},
            "default_chain = main (--default-chain): must be a chain that is configured: default",
        ),
    ],
)
def test_settings_that_do_not_fit_together(flags: dict[str, str], expected: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(toml_path=None, environ={}, flags=flags)
    assert expected in one_line(caught.value)


def test_chains_from_the_file() -> None:
    loaded = from_toml(
        """
        default_chain = "main"
        [chains.main]
        id = 1
        rpc_urls = ["https://a/k", "wss://b"]
        poll_interval = "250ms"
        [chains.dev]
        """
    )
    main, dev = loaded.settings.chains["main"], loaded.settings.chains["dev"]
    assert (main.id, main.rpc_urls, main.poll_interval_s) == (1, ("https://a/k", "wss://b"), 0.25)
    assert (dev.id, dev.rpc_urls, dev.poll_interval_s) == (0, (), 1.0)
    assert "default" not in loaded.settings.chains
    assert loaded.sources["chains.main.id"] == "fencepost.toml"
    assert loaded.sources["chains.dev.id"] == "default"


def test_the_short_names_set_the_default_chain() -> None:
    alone = from_environ(FENCEPOST_RPC_URL="http://a, http://b", FENCEPOST_CHAIN_ID="5")
    assert alone.settings.chains["default"].rpc_urls == ("http://a", "http://b")
    assert alone.sources["chains.default.id"] == "FENCEPOST_CHAIN_ID"
    assert "rpc_url" not in alone.sources

    named = from_environ(FENCEPOST_RPC_URL="http://a", FENCEPOST_DEFAULT_CHAIN="main")
    assert list(named.settings.chains) == ["main"]

    file = 'default_chain = "main"\n[chains.main]\nid = 1\nrpc_urls = ["http://a"]\n[chains.dev]'
    both = from_toml(
        file, environ={"FENCEPOST_CHAIN_ID": "2"}, flags={"chain_id": "3", "rpc_url": "http://c"}
    )
    assert (both.settings.chains["main"].id, both.settings.chains["main"].rpc_urls) == (3, ("http://c",))
    assert both.sources["chains.main.id"] == "--chain-id"
    assert both.settings.chains["dev"].id == 0


@pytest.mark.parametrize(
    ("variable", "key"), [("FENCEPOST_RPC_URL", "rpc_url"), ("FENCEPOST_CHAIN_ID", "chain_id")]
)
def test_an_empty_short_name_does_not_mean_the_dev_chain(variable: str, key: str) -> None:
    with pytest.raises(SettingError, match=rf"{key} = .* \({variable}\): must be"):
        from_environ(**{variable: ""})


def test_chains_that_do_not_fit_together() -> None:
    twice = refusal_of('chains.default.id = 1\nchains.b.id = 1\nchains.b.rpc_urls = ["http://a/hush"]')
    assert "chains.b.id = 1 (fencepost.toml): must be different" in twice
    assert "for chains.default.id = 1" in twice
    assert "default is the embedded dev chain already" in refusal_of("[chains.default]\n[chains.b]")
    assert "must be a chain that is configured: main" in refusal_of("[chains.main]")


def test_two_chains_may_both_ask_their_node_for_the_id() -> None:
    loaded = from_toml('chains.default.rpc_urls = ["http://a"]\nchains.b.rpc_urls = ["http://b"]')
    assert [chain.id for chain in loaded.settings.chains.values()] == [0, 0]


def test_a_signer_may_have_its_own_policy_under_any_spelling_of_its_address() -> None:
    settings = from_toml(
        f"""
        nonce.start_from = 7
        [signers."{ADDRESS}"]
        mode = "pipelined"
        start_from = "chain"
        [signers."0x{"cd" * 20}"]
        max_in_flight = 4
        """
    ).settings
    own = settings.signer_policy(parse_address(ADDRESS))
    assert (own.mode, own.start_from, own.max_in_flight) == ("pipelined", "chain", 16)
    strict = settings.signer_policy(parse_address("0x" + "cd" * 20))
    assert (strict.mode, strict.start_from, strict.max_in_flight) == ("strict", 7, 1)
    other = settings.signer_policy(parse_address("0x" + "ef" * 20))
    assert (other.mode, other.start_from, other.max_in_flight) == ("strict", 7, 1)


def test_one_signer_in_two_spellings_is_refused() -> None:
    text = f"signers.{ADDRESS}.max_in_flight = 1\nsigners.{ADDRESS.lower()}.max_in_flight = 2"
    assert "given twice" in refusal_of(text)


def test_private_keys_are_collected_canonical_once_and_never_shown() -> None:
    loaded = from_environ(
        FENCEPOST_KEY_B=KEY_ONE[2:].upper(), FENCEPOST_KEY_A=KEY_ONE, FENCEPOST_KEY_C="0x" + "22" * 32
    )
    assert loaded.settings.keys.private_keys == (KEY_ONE, "0x" + "22" * 32)
    assert loaded.sources["keys.private_keys"] == "FENCEPOST_KEY_A, FENCEPOST_KEY_C"
    assert mask("keys.private_keys", loaded.settings.keys.private_keys) == "***"
    assert "1111" not in repr(loaded)


@pytest.mark.parametrize("text", ["", "hush", "11" * 31, "0x" + "00" * 32, "ff" * 32])
def test_a_broken_private_key_is_refused_unseen(text: str) -> None:
    with pytest.raises(SettingError) as caught:
        from_environ(FENCEPOST_KEY_MINE=text)
    expected = "keys.private_keys = *** (FENCEPOST_KEY_MINE): must be a private key: 0x and 64 hex digits"
    assert one_line(caught.value) == expected


def test_a_private_key_needs_a_name() -> None:
    with pytest.raises(SettingError, match="FENCEPOST_KEY_: unknown variable"):
        from_environ(FENCEPOST_KEY_=KEY_ONE)


def test_secrets_stay_out_of_repr() -> None:
    loaded = from_environ(
        FENCEPOST_DATABASE_DSN="postgresql://u:hush@h/d",
        FENCEPOST_RPC_URL="https://h/hush",
        FENCEPOST_KEYS_REMOTE_URL="https://u:hush@h",
    )
    assert "hush" not in repr(loaded)


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://u:hush@h:5432/d", "postgresql://***@h:5432/d"),
        ("postgresql://h1:1,h2:2/d?password=hush", "postgresql://h1:1,h2:2/d?***"),
        ("postgres://u:a@hush@h/d", "postgres://***@h/d"),
        ("postgresql://u:5432?hush@h/d", "postgresql://***"),
        ("postgresql://u:hu/sh@h/d", "***"),
        ("hush", "***"),
    ],
)
def test_masked_dsn(dsn: str, shown: str) -> None:
    assert mask_dsn(dsn) == shown
    assert mask("database.dsn", dsn) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h:8545", "https://h:8545"),
        ("https://h/", "https://h"),
        ("https://u:hush@h/v3/hush?k=hush", "https://***@h/***"),
        ("wss://[::1]:1/?hush", "wss://[::1]:1/***"),
        ("https://u:5/hush@h", "https://***"),
        ("https://h/#hush", "***"),
        ("hush", "***"),
    ],
)
def test_masked_url(url: str, shown: str) -> None:
    assert mask_url(url) == shown


def test_mask_takes_parsed_values_and_text() -> None:
    assert mask("chains.x.rpc_urls", ("https://h/hush", "http://b")) == "https://h/***, http://b"
    assert mask("rpc_url", "https://h/hush,http://b") == "https://h/***, http://b"
    assert mask("lease.duration", 0.25) == "250ms"
    assert mask("lease.duration", "120") == "2m"
    assert mask("lease.duration", "soon") == "soon"
    assert mask("api.expose_nonce", False) == "false"
    assert mask("signers.0x.max_in_flight", 3) == "3"
    assert mask("no.such.key", "hush") == "***"


SECRET = st.text(st.sampled_from("abz09/@:?#[]%&= ,.-"), min_size=1, max_size=12).map(
    lambda middle: f"QX{middle}XQ"
)


@given(user=SECRET, password=SECRET)
def test_no_password_passes_the_mask_however_it_is_written(user: str, password: str) -> None:
    for shown in (
        mask_dsn(f"postgresql://{user}:{password}@h:5432/d"),
        mask_url(f"https://{user}:{password}@h/{password}?{password}"),
    ):
        assert "XQ" not in shown
        assert "QX" not in shown


@given(st.integers(min_value=0, max_value=86_400_000))
def test_durations_are_written_so_that_they_read_the_same(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert Duration(0, 86400).parse(duration_text(seconds)) == seconds


@given(st.integers(min_value=0, max_value=10**15))
def test_prices_are_written_so_that_they_read_the_same(wei: int) -> None:
    kind = Gwei(0, 10**15)
    assert kind.parse(kind.plain(wei)) == wei


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("250ms", 0.25), ("2m", 120), ("1h", 3600), ("3", 3), ("1.5", 1.5), (" 2 s ", 2)],
)
def test_ways_to_write_a_duration(text: str, seconds: float) -> None:
    assert from_environ(FENCEPOST_NONCE_STATE_TIMEOUT=text).settings.nonce.state_timeout_s == seconds


def test_bounds_themselves_are_allowed() -> None:
    for key, declared in ALL.items():
        kind = declared.rule.kind
        if isinstance(kind, Duration):
            for bound_s in (kind.low_s, kind.high_s):
                assert kind.parse(duration_text(bound_s)) == bound_s, key
        elif isinstance(kind, Whole | WholeOr | Number):
            assert kind.parse(kind.low) == kind.low, key
            assert kind.parse(kind.high) == kind.high, key


def test_numbers_in_the_file_are_exact() -> None:
    settings = from_toml(
        "fees.cap = 0.1\nlease.skew_allowance = 0.5\nnonce.state_timeout = 7\ngas.estimate_factor = 2"
    ).settings
    assert settings.fees.cap_wei == 10**8
    assert (settings.lease.skew_allowance_s, settings.nonce.state_timeout_s) == (0.5, 7.0)
    assert settings.gas.estimate_factor == 2.0


def test_a_path_may_begin_at_home() -> None:
    loaded = from_environ(HOME="/home/ada", FENCEPOST_KEYS_FILE="~/keys", FENCEPOST_EMBEDDED_DATA_DIR="~")
    assert (loaded.settings.keys.file, loaded.settings.embedded.data_dir) == ("/home/ada/keys", "/home/ada")
    assert from_environ(FENCEPOST_KEYS_FILE="~/keys").settings.keys.file == str(Path.home() / "keys")
    assert from_environ(FENCEPOST_KEYS_FILE="~ada/keys").settings.keys.file == "~ada/keys"


def uncommented(example: str) -> str:
    lines = example.splitlines()
    return "\n".join(
        line[1:] if line.startswith("#") and not line.startswith("# ") else line for line in lines
    )


def test_the_example_uncommented_says_every_default_and_as_it_stands_nothing() -> None:
    defaults = load(toml_path=None, environ={}, flags={})
    example = uncommented(example_toml())
    loaded = from_toml(example)
    assert loaded.settings == defaults.settings
    assert set(loaded.sources) == set(ALL)
    assert set(loaded.sources.values()) == {"fencepost.toml"}
    as_it_stands = tomllib.loads(example_toml())
    assert as_it_stands.pop("fees") == {"bump": {}}
    assert not any(as_it_stands.values())


def test_a_mistake_in_the_file_is_told_even_where_the_environment_overrides_it() -> None:
    with pytest.raises(SettingError, match=r"api\.port = 'x' \(fencepost\.toml\)"):
        from_toml('api.port = "x"', environ={"FENCEPOST_API_PORT": "1"})


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_API_PORT", "4321")
    assert load().settings.api.port == 4321

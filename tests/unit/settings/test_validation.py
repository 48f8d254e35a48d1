"""Settings that must be consistent with each other, for chains and signers."""

from __future__ import annotations

import pytest

from fencepost.domain.ids import parse_address
from fencepost.errors import SettingError
from fencepost.settings import load
from unit.settings.loading import ADDRESS, from_environ, from_toml, one_line, refusal_of


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
    ("flags", "expected"),
    [
        (
            {"lease.duration": "4s"},
            "(default): must be less than half of lease.duration, because lease.duration = 4s (--lease-duration)",
        ),
        (
            {"lease.renew_interval": "5s"},
            "lease.renew_interval = 5s (--lease-renew-interval): must be less than half",
        ),
        (
            {"fees.source": "fixed"},
            "fees.fixed_fee_cap = 0 (default): must be above 0, because fees.source = fixed",
        ),
        (
            {"fees.source": "fixed", "fees.fixed_fee_cap": "2", "fees.fixed_tip": "2.5"},
            "fees.fixed_tip = 2.5 (--fees-fixed-tip): must be at most the fee cap, because fees.fixed_fee_cap = 2 ",
        ),
        (
            {"fees.source": "fixed", "fees.fixed_fee_cap": "501"},
            "fees.fixed_fee_cap = 501 (--fees-fixed-fee-cap): must be at most the cap of all prices, because fees.cap = 500 ",
        ),
        (
            {"fees.bump.enabled": "true", "resubmit.enabled": "off"},
            "fees.bump.enabled = true (--fees-bump-enabled): must be false",
        ),
        (
            {"fees.bump.enabled": "true", "resubmit.max_attempts": "2"},
            "fees.bump.after_resubmits = 3 (default): must be at most the limit of resubmits, because resubmit.max_attempts = 2 ",
        ),
        (
            {"keys.keystore_dir": "k"},
            'keys.keystore_password_file = "" (default): must be the path of a file',
        ),
        (
            {"default_chain": "main"},
            "default_chain = main (--default-chain): must be a configured chain: default",
        ),
    ],
)
def test_inconsistent_settings_are_rejected(flags: dict[str, str], expected: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(toml_path=None, environ={}, flags=flags)
    assert expected in one_line(caught.value)


def test_chains_are_read_from_the_file() -> None:
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


def test_inconsistent_chains_are_rejected() -> None:
    twice = refusal_of('chains.default.id = 1\nchains.b.id = 1\nchains.b.rpc_urls = ["http://a/hush"]')
    assert "chains.b.id = 1 (fencepost.toml): must be different" in twice
    assert "because chains.default.id = 1" in twice
    assert "default already uses the embedded dev chain" in refusal_of("[chains.default]\n[chains.b]")
    assert "must be a configured chain: main" in refusal_of("[chains.main]")


def test_missing_chain_ids_are_reported_when_a_node_needs_them() -> None:
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
    own = settings.signer_settings(parse_address(ADDRESS))
    assert (own.mode, own.start_from, own.max_in_flight) == ("pipelined", "chain", 16)
    strict = settings.signer_settings(parse_address("0x" + "cd" * 20))
    assert (strict.mode, strict.start_from, strict.max_in_flight) == ("strict", 7, 1)
    other = settings.signer_settings(parse_address("0x" + "ef" * 20))
    assert (other.mode, other.start_from, other.max_in_flight) == ("strict", 7, 1)


def test_one_signer_in_two_spellings_is_rejected() -> None:
    text = f"signers.{ADDRESS}.max_in_flight = 1\nsigners.{ADDRESS.lower()}.max_in_flight = 2"
    assert "given twice" in refusal_of(text)

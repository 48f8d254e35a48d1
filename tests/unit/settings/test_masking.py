"""Keys, passwords and URLs that contain them: collected once, and never shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import SettingError
from fencepost.settings import mask, mask_dsn, mask_url
from unit.settings.loading import KEY_ONE, from_environ, one_line


def test_private_keys_are_normalized_collected_once_and_never_shown() -> None:
    loaded = from_environ(
        FENCEPOST_KEY_B=KEY_ONE[2:].upper(), FENCEPOST_KEY_A=KEY_ONE, FENCEPOST_KEY_C="0x" + "22" * 32
    )
    assert loaded.settings.keys.private_keys == (KEY_ONE, "0x" + "22" * 32)
    assert loaded.sources["keys.private_keys"] == "FENCEPOST_KEY_A, FENCEPOST_KEY_C"
    assert mask("keys.private_keys", loaded.settings.keys.private_keys) == "***"
    assert "1111" not in repr(loaded)


@pytest.mark.parametrize("text", ["", "hush", "11" * 31, "0x" + "00" * 32, "ff" * 32])
def test_an_invalid_private_key_is_rejected_without_quoting_it(text: str) -> None:
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
def test_the_password_of_a_dsn_is_masked(dsn: str, shown: str) -> None:
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
def test_the_secrets_of_a_url_are_masked(url: str, shown: str) -> None:
    assert mask_url(url) == shown


def test_mask_accepts_parsed_values_and_text() -> None:
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
def test_no_spelling_of_a_password_passes_the_mask(user: str, password: str) -> None:
    for shown in (
        mask_dsn(f"postgresql://{user}:{password}@h:5432/d"),
        mask_url(f"https://{user}:{password}@h/{password}?{password}"),
    ):
        assert "XQ" not in shown
        assert "QX" not in shown

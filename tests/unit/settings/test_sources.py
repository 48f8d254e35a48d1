"""Variables that Kubernetes sets for a Service, and variables that only look like them."""

from __future__ import annotations

import logging

import pytest

from fencepost.errors import SettingError
from unit.settings.loading import KEY_ONE, from_environ


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("FENCEPOST_PORT", "tcp://10.0.0.1:8420"),
        ("FENCEPOST_PORT", "udp://[fd00::1]:53"),
        ("FENCEPOST_API_PORT", "tcp://10.0.0.1:8420"),
        ("FENCEPOST_SERVICE_HOST", "fd00::1"),
        ("FENCEPOST_NODE_A_SERVICE_PORT_METRICS", "9090"),
        ("FENCEPOST_PORT_8420_TCP_ADDR", "10.0.0.1"),
        ("FENCEPOST_KEY_STORE_PORT", "tcp://10.0.0.1:80"),
    ],
)
def test_a_service_link_is_ignored(variable: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    loaded = from_environ(**{variable: text})
    assert loaded.settings.api.port == 8420
    assert loaded.settings.keys.private_keys == ()
    assert variable in caplog.text


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("FENCEPOST_PORT", "8420"),  # a setting with a wrong name: api.port
        ("FENCEPOST_API_PORT", "tcp:8420"),
        ("FENCEPOST_SERVICE_HOST", "example.org"),
        ("FENCEPOST_API_HOST_PORT", "8420"),
        ("FENCEPOST_DATABASE_PORT", "5432"),
    ],
)
def test_a_similar_variable_is_rejected(variable: str, text: str) -> None:
    with pytest.raises(SettingError, match=variable):
        from_environ(**{variable: text})


def test_a_private_key_is_never_taken_for_a_service_link(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    loaded = from_environ(FENCEPOST_KEY_SERVICE_HOST=KEY_ONE, FENCEPOST_API_PORT="9000")
    assert loaded.settings.keys.private_keys == (KEY_ONE,)
    assert loaded.settings.api.port == 9000
    assert caplog.text == ""

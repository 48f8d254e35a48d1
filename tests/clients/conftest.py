"""Fixtures for the suites with third-party clients."""

from __future__ import annotations

import pytest

from npm_clients import NpmClients, installed


@pytest.fixture(scope="session")
def npm_clients() -> NpmClients:
    return installed()

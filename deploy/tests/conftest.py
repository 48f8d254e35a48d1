"""The fixtures of the main suite; `./dev deploy` runs these tests, which need programs of Debian's packages."""

from __future__ import annotations

pytest_plugins = ["fixtures.postgres", "fixtures.anvil", "fixtures.core", "fixtures.nodes", "fixtures.api"]

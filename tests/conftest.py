"""Fixtures are plugins, one a part of the world: `fix_postgres`, `fix_anvil`, `fix_core`, `fix_nodes`, `fix_api`, `fix_redis`."""

from __future__ import annotations

pytest_plugins = ["fix_postgres", "fix_anvil", "fix_core", "fix_nodes", "fix_api", "fix_redis"]

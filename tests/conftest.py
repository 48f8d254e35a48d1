"""Fixtures are plugins, one a part of the world: `fix_postgres`, `fix_anvil`, `fix_core`, `fix_nodes`, `fix_api`, `fix_redis`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

pytest_plugins = ["fix_postgres", "fix_anvil", "fix_core", "fix_nodes", "fix_api", "fix_redis"]

# That a machine is busy says nothing of the code.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

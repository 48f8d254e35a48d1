"""Fixtures are plugins, one per part: `fixtures.postgres`, `fixtures.anvil`, `fixtures.core`, `fixtures.nodes`,
`fixtures.api`, `fixtures.redis`.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

pytest_plugins = [
    "fixtures.postgres",
    "fixtures.anvil",
    "fixtures.core",
    "fixtures.nodes",
    "fixtures.api",
    "fixtures.redis",
]

# A slow example on a busy machine is no defect.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

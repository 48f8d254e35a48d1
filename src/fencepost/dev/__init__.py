"""Run an embedded PostgreSQL, Anvil or Redis, for `fencepost up` without a configured database or chain, and for tests."""

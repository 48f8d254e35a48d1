"""Chaos runs: real nodes, PostgreSQL and chain under faults that a seed chooses."""

"""Implement the ports: PostgreSQL, EVM endpoints, signing keys and calls to other nodes."""

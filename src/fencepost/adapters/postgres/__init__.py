"""Implement the `Ledger` and `Reader` ports on PostgreSQL, with statements in `sql/` and the schema in `migrations/`."""

"""Define the use cases, one per module, and the ports through which they reach chain, database and keys."""

"""Implement the `Chain` port over JSON-RPC endpoints: transport, encoding, fee quotes and error classification."""

"""Serve `/rpc`: Ethereum JSON-RPC with nonces managed by Fencepost."""

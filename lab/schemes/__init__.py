"""The comparison of the schemes of the nonce service under load and faults."""

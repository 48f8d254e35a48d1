"""Keep a node running: leases, lane workers, head following, membership, metrics and logs."""

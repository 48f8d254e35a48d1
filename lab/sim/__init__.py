"""The deterministic simulator: real nodes and lanes on simulated ports, in an order that a seed chooses."""

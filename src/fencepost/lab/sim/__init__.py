"""The deterministic simulator: the real lanes, nodes and use cases in a world that a seed decides."""

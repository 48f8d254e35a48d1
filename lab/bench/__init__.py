"""The benchmark: what Fencepost costs, as ratios to what the same machine does without it in the same run."""

"""Build a running node, its cluster membership and its API from the settings: the composition root."""

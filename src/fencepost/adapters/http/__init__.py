"""Call other Fencepost nodes over HTTP."""

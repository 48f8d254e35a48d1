"""Check the history of a run against the invariants that Fencepost must keep."""

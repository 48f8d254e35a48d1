"""The lab: the real program, on real parts, under load and faults, with a check of what came of it."""

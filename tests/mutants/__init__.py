"""Mutants: planted flaws, and the schedules and seeds of the simulator that must catch them."""

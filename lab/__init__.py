"""Experiments on Fencepost for its developers: chaos runs, simulations, benchmarks and the checks of their results."""

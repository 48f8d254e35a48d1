"""Declare every setting: type, bounds, default and description."""

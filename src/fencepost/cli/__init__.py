"""Implement the `fencepost` command, one file per subcommand."""

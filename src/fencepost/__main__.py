"""`python -m fencepost` is `fencepost`."""

from fencepost.cli.main import main

main()

"""`python -m threedident` is `3dident`."""

from threedident.cli import main

main()

"""`python -m dispatcher.cli`: the same command where the console script is not installed."""

from dispatcher.cli import main

main()

"""Run the command line as `python -m fedarena`."""

from fedarena.cli.main import main

main()

"""python -m fedarena"""

from fedarena.cli.main import main

main()

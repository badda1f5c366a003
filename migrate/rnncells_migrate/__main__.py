"""`python -m rnncells_migrate` runs the command line."""

import sys

from rnncells_migrate.cli import main

if __name__ == "__main__":
    sys.exit(main())

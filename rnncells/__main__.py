import sys

from rnncells.migrate.cli import main

if __name__ == "__main__":
    sys.exit(main(prog="python -m rnncells"))

import sys

from rnncells._command import main

if __name__ == "__main__":
    sys.exit(main(prog="python -m rnncells"))

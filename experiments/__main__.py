"""Entry point of `python -m experiments`."""

import sys

from experiments.runs.interruption import Interruption

if __name__ == "__main__":
    # Signals can already come while the command line is imported.
    with Interruption(at_once=True):
        try:
            from experiments.cli import main
        except ModuleNotFoundError as error:
            from experiments.settings.wording import INSTALL

            text = f"error: `experiments` needs the package {error.name}: {INSTALL}."
            print(text, file=sys.stderr)
            raise SystemExit(2) from error

    raise SystemExit(main())

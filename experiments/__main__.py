"""Entry point of `python -m experiments`."""

from experiments.interruption import Interruption

if __name__ == "__main__":
    # Signals can already come while the command line is imported.
    with Interruption(at_once=True):
        from experiments.cli import main

    raise SystemExit(main())

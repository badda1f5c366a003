"""Many runs in parallel, each in its own process.

A run keeps one core busy. Finished runs are not repeated, and interrupted runs are
resumed: repeat a command to continue a whole table.
"""

import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from experiments.runs.folder import RESULT, is_of, is_of_data, locked, read_result
from experiments.runs.interruption import SIGNALS, Interrupted
from experiments.settings.options import parse_run
from experiments.settings.reading import (
    config_names,
    config_path,
    read_config,
    readings,
)
from experiments.settings.rules import ConfigError
from experiments.settings.wording import nearest

# `experiments` is not installed: Python finds it only from this folder.
CLONE = Path(__file__).resolve().parents[2]

Row = tuple[str, str | None]


def chosen(words: list[str]) -> list[Row]:
    """Returns the rows and readings that arguments name.

    Args:
      words: `ROW` for the literal reading, or `ROW:READING`. Both can contain `*`, `?`
        and `[...]`, like file names in a shell. A row can be a path to a `.toml` file.

    Raises:
      ConfigError: a word matches nothing.
    """
    found: dict[Row, None] = {}
    for word in words:
        row, _, reading = word.partition(":")
        names = [name for name in config_names() if fnmatchcase(name, row)]
        if row.endswith(".toml"):
            # Absolute, because its run starts in another folder.
            names = [str(config_path(row).resolve())]
        of_word = [
            (name, known)
            for name in names
            for known in (readings(config_path(name)) if reading else [None])
            if known is None or fnmatchcase(known, reading)
        ]
        if not of_word:
            raise ConfigError(f"no row `{word}`{nearest(word, config_names())}")
        found |= dict.fromkeys(of_word)
    return list(found)


def run_all(rows: list[Row], options: list[str], processes: int, runs: Path) -> bool:
    """Runs rows, prints a line when one ends, and returns whether all succeeded.

    Args:
      rows: rows from `chosen`.
      options: command line options for every run.
      processes: number of parallel runs, at least 1.
      runs: folder for the folders of the runs. A run's output is added to `FOLDER.log`.

    Raises:
      ConfigError: an option is wrong, or a finished run has other options.
    """
    left = _left(rows, options, runs)
    print(f"{len(rows) - len(left)} of {len(rows)} runs already finished", flush=True)
    started, are_good = time.monotonic(), True
    children: set[subprocess.Popen] = set()
    # Interrupting this process interrupts all runs; they can be resumed.
    before = {number: signal.signal(number, _stop) for number in SIGNALS}
    with ThreadPoolExecutor(processes) as pool:
        running = {
            pool.submit(_run, row, options, folder, children): folder
            for row, folder in left
        }
        try:
            for ended in as_completed(running):
                folder, failure = running[ended], ended.result()
                are_good &= failure is None
                says = _said(folder) if failure is None else f"failed, {failure}"
                seconds = time.monotonic() - started
                print(f"{seconds:7.0f} s  {folder.name}: {says}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in children:
                process.terminate()
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return are_good


def _stop(number: int, frame: Any) -> None:
    # This process does not use JAX, so the exception is not lost.
    raise Interrupted(number, "the runs were stopped")


def _left(rows: list[Row], options: list[str], runs: Path) -> list[tuple[Row, Path]]:
    """Returns the rows whose runs have not finished, with their folders."""
    left, of_folder = [], {}
    for row in rows:
        folder, has_ended = _folder(row, options, runs)
        other, _ = of_folder.setdefault(folder, row)
        if of_folder[folder] != row:
            raise ConfigError(
                f"every row must have its own folder, got `{folder}` for both "
                f"`{other}` and `{row[0]}`. Rename one of them."
            )
        if not has_ended:
            left.append((row, folder))
    return left


def _folder(row: Row, options: list[str], runs: Path) -> tuple[Path, bool]:
    """Returns the folder of a run, and whether the run has finished."""
    name, reading = row
    path = config_path(name)
    command = parse_run(read_config(path, reading), options)
    experiment = command.experiment
    words = path.stem, reading, f"seed{experiment.seed}"
    folder = runs / "-".join(filter(None, words))
    if command.flags.overwrite or not (folder / RESULT).is_file():
        return folder, False
    if not is_of(read_result(folder / RESULT), experiment):
        raise ConfigError(
            f"`{folder}` must be empty or have a run with the same options, got a run "
            "with other options. Pass another folder with --out, or --overwrite."
        )
    return folder, True


def _run(
    row: Row, options: list[str], folder: Path, processes: set[subprocess.Popen]
) -> str | None:
    """Runs one row in its own process; returns what to say of a failure, or None."""
    name, reading = row
    words = [name, *(("--reading", reading) if reading else ()), *options]
    try:
        with locked(folder):
            pass
    except ConfigError as error:
        # The log is that of the other process.
        return str(error)
    command = [sys.executable, "-m", "experiments", "run", *words]
    command += ["--out", str(folder.resolve())]
    with Path(f"{folder}.log").open("a") as log:
        print("$ python", shlex.join(command[1:]), file=log, flush=True)
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=CLONE)
        processes.add(process)
        return f"see {folder}.log" if process.wait() else None


def _said(folder: Path) -> str:
    """Returns a one-line summary of a run's result."""
    result = read_result(folder / RESULT)
    if is_of_data(result):
        return f"{result['updates']:,} updates, {result['seconds']:.0f} s"
    solved = sum(trial["solved"] for trial in result["trials"])
    return f"{solved} of {len(result['trials'])} trials, {result['seconds']:.0f} s"

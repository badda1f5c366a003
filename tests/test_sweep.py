"""Many runs by one command, and what a run says about its progress."""

import io
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from experiments.cli import main
from experiments.runs import progress
from experiments.runs.folder import begin, check, locked
from experiments.runs.sweep import CLONE, chosen
from experiments.settings.reading import config_names, config_path, read_config
from experiments.settings.rules import ConfigError

pytestmark = pytest.mark.default

SIX_A = "temporal-order-6a"
SHORT = ["--trials", "2", "--learning.max-sequences", "20", "--test-sequences", "4"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "words, rows",
    [
        ([SIX_A], [(SIX_A, None)]),
        (["*"], [(name, None) for name in config_names()]),
        (["reber-1-[12]"], [("reber-1-1", None), ("reber-1-2", None)]),
        ([f"{SIX_A}:gru", SIX_A, SIX_A], [(SIX_A, "gru"), (SIX_A, None)]),
        (
            ["*-6?:*lstm"],
            [
                (f"temporal-order-6{x}", f"{kind}lstm")
                for x in "ab"
                for kind in ("", "chrono-")
            ],
        ),
    ],
)
def test_patterns_select_rows_and_readings(words, rows):
    assert chosen(words) == rows


def test_row_may_be_a_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(config_path(SIX_A).read_text())
    assert chosen(["mine.toml:*lstm", "./mine.toml"]) == [
        (str(path), "lstm"),
        (str(path), "chrono-lstm"),
        (str(path), None),
    ]


@pytest.mark.exhaustive
def test_run_all_names_failed_runs_and_skips_finished_ones(tmp_path, capsys):
    # Its programs compile fastest.
    shutil.copy(config_path("long-lag-2a"), tmp_path / "mine.toml")
    Path(f"runs/{SIX_A}-seed0").mkdir(parents=True)
    Path(f"runs/{SIX_A}-seed0/notes.txt").write_text("mine")
    mine, name = "mine.toml:full-gradient", "mine-full-gradient-seed0"
    assert main(["run-all", mine, SIX_A, *SHORT]) == 2
    output = capsys.readouterr()
    assert output.out.startswith("0 of 2 runs already finished")
    assert len(json.loads(Path(f"runs/{name}/result.json").read_text())["trials"]) == 2
    assert f"{name}: 0 of 2 trials" in output.out
    assert f"{SIX_A}-seed0: failed, see runs/{SIX_A}-seed0.log" in output.out
    assert output.err == "error: some runs failed; see above.\n"
    log = Path(f"runs/{SIX_A}-seed0.log")
    first = log.read_text()
    assert first.startswith(f"$ python -m experiments run {SIX_A} --trials 2 ")
    assert "is not empty" in first

    # Neither a run that goes on nor another process loses what the log has.
    assert main(["run-all", SIX_A, *SHORT]) == 2
    assert log.read_text() == 2 * first
    capsys.readouterr()
    with locked(log.with_suffix("")):
        assert main(["run-all", SIX_A, *SHORT]) == 2
    assert log.read_text() == 2 * first
    said = capsys.readouterr().out
    assert f"failed, another process is using `{log.with_suffix('')}`.\n" in said

    assert main(["run-all", mine, *SHORT]) == 0
    assert capsys.readouterr().out.startswith("1 of 1 runs already finished")
    assert main(["run-all", mine, *SHORT, "--learning.rate", "0.4"]) == 2
    assert "or have a run with the same options" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        (["temporal-order-6"], "no row `temporal-order-6`; did you mean"),
        ([f"{SIX_A}:grus"], f"no row `{SIX_A}:grus`"),
        ([SIX_A, "--reading", "gru"], "Write readings as ROW:READING."),
        ([SIX_A, "--processes", "0"], "`--processes` must be at least 1, got `0`."),
        ([SIX_A, "--processes", "00"], "`--processes` must be at least 1, got `00`."),
        ([SIX_A, "--trials", "0"], "`trials` must be an integer in [1, 2**31), got 0."),
        ([SIX_A, "--trails", "1"], "did you mean `--trials`?"),
    ],
)
def test_mistakes_end_before_any_run(words, message, capsys):
    assert main(["run-all", *words]) == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


def test_rows_with_one_folder_end_before_any_run(tmp_path, capsys):
    for folder in ("aa", "bb"):
        (tmp_path / folder).mkdir()
        shutil.copy(config_path(SIX_A), tmp_path / folder / "mine.toml")
    assert main(["run-all", "aa/mine.toml", "bb/mine.toml", *SHORT]) == 2
    error = capsys.readouterr().err
    assert "`runs/mine-seed0` for" in error and "aa/mine.toml" in error
    assert not Path("runs").exists()


NO_RESULT = b'{"config": {}, "trials": [], "name": "temporal-order-6a"}'


@pytest.mark.parametrize("damaged", [b"{", b"\xff", b"[]", b"{}", NO_RESULT])
def test_damaged_results_end_with_one_line(damaged, capsys):
    folder = Path(f"runs/{SIX_A}-seed0")
    folder.mkdir(parents=True)
    (folder / "result.json").write_bytes(damaged)
    for words in (["run-all", SIX_A], ["keep", str(folder)], ["report", str(folder)]):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert "result.json is damaged" in error and len(error.splitlines()) == 1


def test_run_folder_is_locked_by_one_process(tmp_path, monkeypatch):
    folder, link = tmp_path / "of/run", tmp_path / "link"
    with locked(folder):
        link.symlink_to(folder)
        monkeypatch.chdir(folder)
        for path in (folder, link, Path("."), Path("../../of/run")):
            with pytest.raises(ConfigError, match="another process is using"):
                with locked(path):
                    pass
    with locked(link):
        pass
    assert not list(folder.iterdir())


def test_lock_of_a_removed_file_is_not_held(tmp_path, monkeypatch):
    """A process that ends removes the file, which another one may have opened."""

    def flock(lock, how):
        Path(lock.name).unlink()

    monkeypatch.setattr("experiments.runs.folder.fcntl.flock", flock)
    with pytest.raises(ConfigError, match="another process is using"):
        with locked(tmp_path):
            pass


def test_lock_is_no_content_of_a_folder(tmp_path):
    experiment = read_config(config_path(SIX_A))
    with locked(Path(".")):
        assert check(Path("."), experiment) is False
        begin(Path("."), experiment, overwrite=True)
        assert (tmp_path / "lock").is_file()


@pytest.mark.exhaustive
def test_runs_end_with_the_command(tmp_path):
    long = [sys.executable, "-m", "experiments", "run-all", SIX_A, "--out", tmp_path]
    process = subprocess.Popen(long, cwd=CLONE)
    lock = tmp_path / f"{SIX_A}-seed0" / "lock"
    while not lock.is_file():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    with locked(tmp_path / f"{SIX_A}-seed0"):
        pass


@pytest.fixture
def shown(monkeypatch):
    """A function from `(seconds, done, text)` to the lines that are printed."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def show(*reports, width=80, is_terminal=False, total=1_000_000, **options):
        now[0] = 0.0
        console = Console(
            file=io.StringIO(),
            width=width,
            force_terminal=is_terminal,
            color_system=None,
            _environ={"TERM": "xterm"},
        )
        options = {"unit": "sequences", "can_stop_early": True} | options
        under_way = progress.Progress(total, console=console, **options)
        with under_way:
            for seconds, *report in reports:
                now[0] = seconds
                under_way.show(*report)
        return console.file.getvalue().splitlines()

    return show


# 800 sequences a second after the first report, which includes compilation.
REPORTS = (
    (20.0, 200_000, "error 0.500, 0/20 solved"),
    (270.0, 400_000, "error 0.125, 3/20 solved"),
)


def test_lines_show_counts_text_and_time_left(shown):
    assert shown(*REPORTS, width=100) == [
        "   20 s: 200,000/1,000,000 sequences, error 0.500, 0/20 solved",
        "  270 s: 400,000/1,000,000 sequences, error 0.125, 3/20 solved, "
        "at most 0:12:30 left",
    ]
    # A run that cannot stop early.
    (*_, last) = shown(*REPORTS, can_stop_early=False, title="a", width=100)
    assert last == (
        "  270 s: a, 400,000/1,000,000 sequences, error 0.125, 3/20 solved, "
        "0:12:30 left"
    )


def test_line_is_printed_every_15_seconds_and_at_the_end(shown):
    reports = [(k, 500 * (k + 1), "error 0.5") for k in range(40)]
    lines = shown(*reports)
    assert [line[:8] for line in lines] == ["   15 s:", "   30 s:", "   39 s:"]
    assert shown(*reports[:31])[1:] == lines[1:2]
    assert shown() == []


@pytest.mark.parametrize("resumed_at", [0, 900_000])
def test_time_left_is_that_of_the_recent_speed(resumed_at, shown):
    # A slow start, compilation again at 100 s, then 10 updates a second.
    reports = [(50.0, 0), (90.0, 100)]
    reports += [(200.0 + k, 200 + 10 * k) for k in range(0, 100, 5)]
    reports = [(time, done + resumed_at, "loss 1.5") for time, done in reports]
    total = resumed_at + 2000
    lines = shown(*reports, unit="updates", total=total, can_stop_early=False)
    # At 295 s, 1150 updates are done.
    assert lines[-1].endswith(", loss 1.5, 0:01:25 left")

"""What a run says about its progress."""

import io

import pytest
from rich.console import Console

from experiments.runs import progress

pytestmark = pytest.mark.default


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

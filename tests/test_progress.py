"""What a run says while it is under way."""

import pytest

from experiments import progress
from experiments.settings.reading import config_path, read_config


@pytest.fixture
def shown(monkeypatch, capsys):
    """A function from `(seconds, presented, error, solved)` to what is printed."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    experiment = read_config(config_path("temporal-order-6a"))  # 20 trials, cap 1M

    def show(*reports):
        with progress.Progress(experiment) as under_way:
            for seconds, *report in reports:
                now[0] = seconds
                under_way.show(*report)
        return capsys.readouterr().err.splitlines()

    return show


def test_progress_line_shows_sequences_error_trials_and_time_left(shown):
    # 800 sequences a second after the first chunk, with which it began.
    lines = shown((20.0, 200_000, 0.5, 0), (270.0, 400_000, 0.125, 3))

    assert lines == [
        "   20 s: 200,000 sequences, error 0.500, 0/20 solved",
        "  270 s: 400,000 sequences, error 0.125, 3/20 solved, at most 0:12:30 left",
    ]


def test_progress_is_printed_rarely_and_at_the_end(shown):
    reports = [(k, 500 * (k + 1), 0.5, 0) for k in range(14)]

    assert shown(*reports) == []
    assert len(shown(*reports, (14, 7500, 0.1, 20))) == 1

"""Verdicts on the rows of the paper, from results that are kept."""

import copy
import json

import pytest

from experiments import paper1997
from experiments.paper1997 import Outcome, keep, outcomes, verdict
from experiments.reading import config_names, config_path, read_config, to_dict
from experiments.rules import ConfigError

NAME = "temporal-order-6a"


def result_of(*sequences, name=NAME, reading=None, **changed):
    config = to_dict(read_config(config_path(name), reading))
    trials = [
        {"trial": k, "solved": n > 0, "sequences": [n], "wrong": [1], "mean_error": [0]}
        for k, n in enumerate(sequences)
    ]
    result = {"name": name, "reading": reading, "config": config, "weights": 156}
    return copy.deepcopy(result) | {"trials": trials} | changed


def outcome(kind, *sequences):
    return Outcome(f"a {kind} one", kind, result_of(*sequences))


GOOD, SLOW, HALF = (31_000, 40_000), (31_000, 90_000), (100, 0)


@pytest.mark.parametrize(
    "found, expected",
    [
        ([], "not run"),
        ([("literal", GOOD), ("silent", GOOD)], "**reproduced as written**"),
        (
            [("literal", SLOW), ("departure", GOOD), ("silent", GOOD)],
            "**reproduced under reading** `a silent one`",
        ),
        (
            [("literal", HALF), ("contradictory", GOOD)],
            "**reproduced under reading** `a contradictory one`",
        ),
        (
            [("literal", HALF), ("departure", GOOD), ("silent", SLOW)],
            "**reproduced with deviation** `a departure one`",
        ),
        (
            [("literal", HALF), ("silent", SLOW)],
            "not reproduced (best: `a silent one`)",
        ),
        ([("literal", (0, 0))], "not reproduced (best: `a literal one`)"),
    ],
)
def test_verdict_follows_from_the_outcomes(found, expected):
    assert verdict([outcome(kind, *trials) for kind, trials in found]) == expected


def test_share_is_that_of_the_paper():
    sequences = [10_000] * 29 + [0]
    one = Outcome("x", "literal", result_of(*sequences, name="reber-1-3"))
    assert one.is_reproduced
    other = Outcome("x", "literal", result_of(*sequences, name="reber-1-2"))
    assert not other.is_reproduced


def test_results_are_kept_by_row_and_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(paper1997, "RESULTS", tmp_path / "results")
    for reading in (None, "ranges-of-caption"):
        run = tmp_path / "run"
        run.mkdir(exist_ok=True)
        result = result_of(*GOOD, reading=reading)
        (run / "result.json").write_text(json.dumps(result))
        kept = keep(run)
        assert kept.name == f"{reading or 'as-written'}.json"
        assert json.loads(kept.read_text()) == result
    literal, other = outcomes(NAME)
    assert (literal.kind, other.kind) == ("literal", "contradictory")
    text = paper1997.tables()
    assert "| as-written | 156, 156 | 2 of 2 (cap 1,000,000) | 31,390 | 35,500" in text
    assert f"| {NAME} | **reproduced as written** |" in text

    result["config"]["trials"] = 3
    (run / "result.json").write_text(json.dumps(result))
    with pytest.raises(ConfigError, match="as its config says, got trials = 3"):
        keep(run)
    kept.rename(kept.with_name("no-such.json"))
    with pytest.raises(ConfigError, match="no reading `no-such`"):
        outcomes(NAME)


def test_page_shows_what_the_command_prints():
    page = (paper1997.RESULTS.parent.parent / "docs" / "paper1997.md").read_text()
    _, shown, _ = page.split("<!-- tables -->")
    assert shown.strip() == paper1997.tables()


@pytest.mark.parametrize("name", config_names())
def test_committed_results_are_of_the_config_as_it_is(name):
    from experiments.report import changes

    for kept in outcomes(name):
        assert changes(kept.result) == []

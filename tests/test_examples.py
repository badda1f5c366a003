"""The programs in `examples` run on a short setting, and do what they say."""

import importlib.util
from pathlib import Path

import pytest
from levels import by_level

pytestmark = pytest.mark.default

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def has_sample(result):
    loss, text = result
    assert loss < 4.2 and len(text) == 20  # 64 symbols: 4.16 is a guess


def is_packed(result):
    difference, accuracy = result
    assert difference < 1e-5 and accuracy > 0.4


def all_right(result):
    report, error = result
    assert report.ok and error < 1


def beam_is_no_worse(result):
    (_, greedy), (_, beam) = result["greedy"], result["beam"]
    assert beam >= greedy - 1e-5


def rewards_are_equal(result):
    ours, idiom = result
    assert ours == idiom > 0


def forecasts(results):
    for error, inside in results:
        assert 0 < error < 100 and 0 < inside < 1


def dtypes_are_float32(result):
    losses, dtypes = result
    assert abs(losses["float32"] - losses["bfloat16"]) < 0.1 and dtypes == {"float32"}


def differences_are_small(result):
    assert max(result) < 1e-5


def restored(result):
    before, after = result
    assert before == after > 0.11  # a guess


def errors_are_positive(result):
    assert min(result) > 0


def falls(result):
    before, after = result
    assert after < before


# Name: a short setting, and a check of what `main` returns.
SHORT = {
    "actor_critic": ({"updates": 2, "steps": 10, "test_steps": 20}, rewards_are_equal),
    "character_model": (
        {
            **{"updates": 2, "features": 4, "batch": 4, "time": 8},
            **{"valid_windows": 1, "sample": 20},
        },
        has_sample,
    ),
    "conv_lstm_forecast": (
        {"updates": 2, "features": 2, "batch": 2},
        errors_are_positive,
    ),
    "export_serving": ({"features": 4, "time": 3}, differences_are_small),
    "from_pytorch": ({"updates": 3, "batch": 4, "time": 5}, falls),
    "mixed_precision": (
        {"updates": 2, "features": 4, "batch": 4, "time": 6},
        dtypes_are_float32,
    ),
    "nnx_training": ({"updates": 20, "features": 8}, restored),
    "own_cell": ({"updates": 2, "features": 4, "batch": 4, "time": 6}, all_right),
    "quantiles": (
        {"updates": 2, "networks": 2, "features": 2, "weeks": 800},
        forecasts,
    ),
    "sequence_to_sequence": (
        {"updates": 2, "features": 4, "batch": 2, "test_count": 2, "beam_size": 2},
        beam_is_no_worse,
    ),
    "tagger": (
        {"updates": 2, "features": 4, "batch": 6, "rows": 6, "test_count": 6},
        is_packed,
    ),
}


def test_every_example_has_a_short_setting():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SHORT.keys()


@pytest.mark.parametrize("name", by_level(SHORT, ["from_pytorch"]))
def test_example_runs(name, capsys):
    path = EXAMPLES / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    setting, check = SHORT[name]
    check(module.main(**setting))
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", SHORT)
def test_example_is_short_and_says_how_to_run_it(name):
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 120
    assert f"    python examples/{name}.py\n" in text.partition('"""\n\n')[0]

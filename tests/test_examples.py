"""The programs in `examples` run on a short setting, and do what they say."""

import importlib.util
from pathlib import Path

import pytest
from levels import by_level

pytestmark = pytest.mark.default

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


# Name: a short setting, and a condition on what `main` returns.
SHORT = {
    "actor_critic": (
        {"updates": 2, "steps": 10, "test_steps": 20},
        lambda ours, idiom: ours == idiom > 0,
    ),
    "character_model": (
        {
            **{"updates": 2, "features": 4, "batch": 4, "time": 8},
            **{"valid_windows": 1, "sample": 20},
        },
        # 64 symbols: 4.16 is a guess.
        lambda loss, text: loss < 4.2 and len(text) == 20,
    ),
    "conv_lstm_forecast": (
        {"updates": 2, "features": 2, "batch": 2},
        lambda *errors: min(errors) > 0,
    ),
    "export_serving": ({"features": 4, "time": 3}, lambda *d: max(d) < 1e-5),
    "from_pytorch": (
        {"updates": 3, "batch": 4, "time": 5},
        lambda before, after: after < before,
    ),
    "mixed_precision": (
        {"updates": 2, "features": 4, "batch": 4, "time": 6},
        lambda losses, dtypes: (
            abs(losses["float32"] - losses["bfloat16"]) < 0.1 and dtypes == {"float32"}
        ),
    ),
    "nnx_training": (
        {"updates": 20, "features": 8},
        lambda before, after: before == after > 0.11,  # a guess
    ),
    "own_cell": (
        {"updates": 2, "features": 4, "batch": 4, "time": 6},
        lambda report, error: report.ok and error < 1,
    ),
    "quantiles": (
        {"updates": 2, "networks": 2, "features": 2, "weeks": 800},
        lambda *found: all(
            0 < error < 100 and 0 < inside < 1 for error, inside in found
        ),
    ),
    "sequence_to_sequence": (
        {"updates": 2, "features": 4, "batch": 2, "test_count": 2, "beam_size": 2},
        lambda greedy, beam: beam[1] >= greedy[1] - 1e-5,
    ),
    "tagger": (
        {"updates": 2, "features": 4, "batch": 6, "rows": 6, "test_count": 6},
        lambda difference, accuracy: difference < 1e-5 and accuracy > 0.4,
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
    setting, is_right = SHORT[name]
    result = module.main(**setting)
    if name == "sequence_to_sequence":
        result = result["greedy"], result["beam"]
    assert is_right(*result)
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", SHORT)
def test_example_is_short_and_says_how_to_run_it(name):
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 120
    assert f"    python examples/{name}.py\n" in text.partition('"""\n\n')[0]

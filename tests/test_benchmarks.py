"""The benchmarks, and the figures of the page on several devices."""

import gc
import json
from functools import partial
from math import isclose
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache
from levels import by_level

import rnncells
from benchmarks import cli, contenders, floor, kernels, scaling, walk
from benchmarks.linen import check_equal_to_flax
from benchmarks.measure import PEERS, describe_environment, measure_case
from benchmarks.plot import save_picture
from benchmarks.report import END, START, format_case, markdown
from benchmarks.sizes import CELLS, Size
from benchmarks.timing import interleave, ratios, spread

pytestmark = pytest.mark.default

TOY = Size("toy", batch=2, time=3, features_in=2, features=3)


@pytest.fixture(scope="module")
def case():
    """A run of a toy size, compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contenders, "COMPILATIONS", 1)
        # Else other tests in this process would compile anew.
        patch.setattr(jax, "clear_caches", lambda: None)
        patch.setattr(gc, "collect", lambda: None)
        return measure_case("LSTM", TOY, "gradient", ["flax"], rounds=2)


@pytest.fixture
def results(case):
    return {"environment": describe_environment(), "cases": [case]}


def test_spread_is_median_and_quartiles():
    assert spread([3.0, 1.0, 2.0, 5.0, 4.0]) == (2.0, 3.0, 4.0)
    assert spread([7.0]) == (7.0, 7.0, 7.0)


def test_ratios_compare_times_of_the_same_round():
    # The third round is slow for all, and no ratio shows it.
    times = {"ours": [1.0, 2.0, 40.0], "theirs": [2.0, 4.0, 80.0]}
    found = ratios(times, "ours")
    assert found["ours"] == (1, 1, 1) and found["theirs"] == (2, 2, 2)
    times["theirs"] = [1.0, 4.0, 120.0]
    assert ratios(times, "ours")["theirs"] == (1.5, 2, 2.5)


@pytest.fixture(autouse=True)
def no_collection(monkeypatch):
    """Each round collects garbage, which takes long in a process of many tests."""
    monkeypatch.setattr(gc, "collect", lambda: None)


def test_rounds_run_every_contender_in_changing_order():
    calls = []
    runs = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = interleave(runs, rounds=6, least_seconds=1e-12)
    assert [len(times[name]) for name in "abc"] == [6, 6, 6]
    # Before them, a call of each that tells how often to repeat it.
    rounds = ["".join(calls[i : i + 3]) for i in range(3, len(calls), 3)]
    assert len(rounds) == 6 and len(set(rounds)) > 1
    assert all(set(order) == set("abc") for order in rounds)


def test_results_have_the_expected_fields(case):
    assert list(case["contenders"]) == ["rnncells", "flax"] and not case["missing"]
    for taken in case["contenders"].values():
        assert 0 < taken["seconds"]["low"] <= taken["seconds"]["high"]
        assert taken["compile_seconds"] > 0 and taken["temporary_bytes"] >= 0
    assert case["contenders"]["rnncells"]["ratio"]["median"] == 1
    assert json.loads(json.dumps(case))["size"]["features"] == 3
    assert "flax" in format_case(case)


def test_missing_or_failing_libraries_are_named(case, monkeypatch):
    def fail(*arguments):
        raise TypeError("no such option\nand more")

    peer, made = PEERS["keras"], contenders.Contender("rnncells", lambda: None)
    changed = {
        "rnncells": contenders.Peer("rnncells", "jax", CELLS, lambda *arguments: made),
        "haiku": contenders.Peer("haiku", "no_such_package", CELLS, fail),
        "keras": contenders.Peer(peer.name, "jax", CELLS, fail),
    }
    monkeypatch.setattr("benchmarks.measure.PEERS", changed)
    found = measure_case("LSTM", TOY, "forward", list(changed), rounds=1)
    assert list(found["contenders"]) == ["rnncells"]
    assert found["missing"] == {
        "haiku": "not installed",
        "keras": "fails: TypeError: no such option",
    }
    assert "not installed" in format_case(found)


@pytest.mark.parametrize("cell", by_level(["LSTM", "CompactLSTM"], ["CompactLSTM"]))
def test_outputs_equal_those_of_flax(cell):
    check_equal_to_flax(cell)


def test_floor_is_a_gradient():
    arguments = floor.make_arguments("GRU", TOY)
    expected = jax.grad(lambda *a: (floor.forward(*a) ** 2).sum(), argnums=(0, 1, 2))
    gradients = (jax.jit(f)(*arguments) for f in (floor.gradient, expected))
    for ours, theirs in zip(*gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_table_is_written_into_a_page(results, tmp_path, capsys):
    page, file = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text(f"# Title\n{START}\n{END}\nend\n")
    file.write_text(json.dumps(results))
    plot = tmp_path / "docs" / "picture.svg"
    words = ["table", "--page", page, "--results", file, "--plot", plot]
    assert cli.main([str(word) for word in words]) == 0
    text = page.read_text()
    assert text.startswith("# Title\n") and text.endswith("\nend\n")
    assert "| cell | size |  | flax |" in text and "docs/picture.svg" in text
    assert markdown(results, "docs/picture.svg") in text
    ours, flax = (results["cases"][0]["contenders"][n] for n in ("rnncells", "flax"))
    ratio = flax["temporary_bytes"] / ours["temporary_bytes"]
    _, _, memory = text.partition("Temporary memory")
    assert f"| LSTM | toy | 2×3, 2→3 | {ratio:.2f} |" in memory
    first = plot.read_bytes()
    save_picture(results, plot)
    assert plot.read_bytes() == first
    page.write_text("no markers")
    assert cli.main([str(word) for word in words]) == 2
    assert "expected one" in capsys.readouterr().err


def test_cases_without_any_library_raise(tmp_path, capsys):
    out = tmp_path / "results.json"
    words = ["--cells", "ConvLSTM", "--sizes", "tiny", "--out", str(out)]
    assert cli.main(words) == 2
    assert "ConvLSTM runs on" in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize(
    "name", by_level(["cumulative", "differentiated"], ["cumulative"])
)
def test_other_learning_loops_give_equal_weights(name, rng, float64):
    from benchmarks import online
    from experiments.paper1997.learners.network import Network, Weights
    from experiments.paper1997.learners.online import at_end

    network, trials = Network(2, 1, 2, 2), 3

    def draw(*shape):
        return jnp.asarray(rng.uniform(-0.5, 0.5, (*shape, trials)))

    w = Weights(draw(2, 8), draw(8, 8), draw(8), draw(1, 4), draw(1), None)
    given = draw(6, 2), jnp.array([6, 1, 4]), draw(1), 0.5

    ours, theirs = (
        jax.jit(partial(learn, network))(w, *given)
        for learn in (at_end, getattr(online, name))
    )

    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


PAGE = (Path(__file__).resolve().parent.parent / scaling.PAGE).read_text()


@pytest.mark.parametrize("name", scaling.TABLES)
def test_tables_are_those_of_the_formulas(name):
    begin, end = scaling.markers(name)
    assert begin + scaling.TABLES[name]() + end in PAGE


def test_times_of_a_small_model():
    """By hand: 2 layers of 4 * 10 * 10 weights, 3 rows, 5 steps."""
    model = scaling.Model(layers=2, features=10, rows=3, time=5)
    slow_memory = scaling.Hardware("", 2e3, 1e2, (10.0, 5.0), 4)
    # Reading 400 weights of 2 bytes at 100 a second; 2 * 3 * 400 operations at 1000.
    assert scaling.step_time(model, slow_memory) == 8.0
    assert scaling.step_time(model, slow_memory, shards=2) == 4.0
    fast_memory = scaling.Hardware("", 2e3, 1e9, (10.0, 5.0), 4)
    assert scaling.step_time(model, fast_memory) == 2.4
    # Two loops of 5 steps, and 4 products of 5 steps at once, of 2 layers.
    assert isclose(scaling.update_time(model, slow_memory), 2 * (10 * 8.0 + 4 * 12.0))
    # Of 40 bytes, 4 devices send 60 in a host; 8 devices send 70 between hosts.
    for devices, seconds in ((4, 6.0), (8, 14.0)):
        moving, hops = scaling.all_reduce_time(40.0, devices, slow_memory)
        assert isclose(moving, seconds)
        assert isclose(hops, 2 * (devices - 1) * scaling.HOP)
    # States of 3 rows and 10 features, of which each device has a quarter.
    gather = scaling.all_gather_time(model, 4, slow_memory)
    assert isclose(gather, 45 / 10 + 3 * scaling.HOP)


# At most so many, in all versions of JAX that are tested.
KERNELS = {"LSTM": 35, "GRU": 42, "mLSTM": 150, "gated delta net": 142}


@pytest.fixture
def compiled_anew():
    """The kernels of a program that is read from the cache cannot be counted."""
    jax.config.update("jax_enable_compilation_cache", False)
    reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    reset_cache()


@pytest.mark.parametrize("name", KERNELS)
def test_a_gradient_has_few_kernels(name, compiled_anew):
    make, _ = kernels.PROGRAMS[name]
    assert 0 < kernels.count_kernels(make()) <= KERNELS[name]


def test_a_walk_counts_files_functions_and_moves():
    assert walk.count(rnncells.Chunk, 3) == (1, 1, 1)

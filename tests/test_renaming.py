"""Parameters move between modules that hold the same cells, and between files."""

import zlib
from functools import cache
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import random_params
from flax import serialization, traverse_util
from flax.core import freeze
from flax.training.train_state import TrainState
from levels import by_level

import rnncells
from rnncells._command import main
from rnncells.interop import renaming
from rnncells.interop.renamed_files import read, write

pytestmark = pytest.mark.default

KEY, X = jax.random.key(0), jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
SCAN = {"variable_broadcast": "params", "split_rngs": {"params": False}}


class Compact(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.RNN(nn.LSTMCell(4))(x)
        x = nn.RNN(nn.LSTMCell(4))(x)
        return nn.Dense(2)(x)


class Scanned(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            cell = nn.scan(nn.LSTMCell, in_axes=1, out_axes=1, **SCAN)(4)
            carry = nn.LSTMCell(4, parent=None).initialize_carry(KEY, x[:, 0].shape)
            _, x = cell(carry, x)
        return nn.Dense(2)(x)


class Setup(nn.Module):
    def setup(self):
        self.rnns = [rnncells.RNN(rnncells.LSTMCell(4)) for _ in range(2)]
        self.head = nn.Dense(2)

    def __call__(self, x):
        return self.head(self.rnns[1](self.rnns[0](x)))


class Layered(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2, name="head")(rnncells.LSTM(4, num_layers=2)(x)[0])


class Ways(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Bidirectional(nn.RNN(nn.GRUCell(4)), nn.RNN(nn.GRUCell(4)))(x)


class OurWays(nn.Module):
    def setup(self):
        self.rnn = rnncells.GRU(4, bidirectional=True)

    def __call__(self, x):
        return self.rnn(x)[0]


LAYOUTS = [Compact(), Scanned(), Setup(), Layered()]
PAIRS = [(a, b) for a in LAYOUTS for b in LAYOUTS] + [(Ways(), OurWays())]


@cache
def params_of(model):
    # Other values for each model.
    rng = np.random.default_rng(zlib.crc32(type(model).__name__.encode()))
    return random_params(rng, model, X)


@cache
def compiled(model):
    return jax.jit(model.apply)


@pytest.mark.parametrize(
    "old, new",
    # To and from every layout.
    by_level(PAIRS, [PAIRS[6], PAIRS[16]]),
    ids=lambda model: type(model).__name__,
)
def test_model_runs_on_parameters_of_another_layout(old, new):
    params, like = params_of(old), params_of(new)

    moved = renaming.rename(params, like)

    assert jax.tree.structure(moved) == jax.tree.structure(like)
    # Modules of equal widths could be exchanged.
    y, expected = compiled(new)(moved, X), compiled(old)(params, X)
    np.testing.assert_allclose(y, expected, atol=1e-6)
    back = renaming.rename(moved, params)
    jax.tree.map(np.testing.assert_array_equal, back, params)


def test_mapping_names_what_moves():
    params = jax.eval_shape(Compact().init, KEY, X)
    like = jax.eval_shape(Setup().init, KEY, X)
    assert renaming.mapping(params, params) == {}
    assert renaming.mapping(params, like) == {
        "params/Dense_0": "params/head",
        "params/LSTMCell_0": "params/rnns_0/cell",
        "params/LSTMCell_1": "params/rnns_1/cell",
    }


@pytest.mark.parametrize("suffix", [".msgpack", ".safetensors"])
def test_command_renames_files(suffix, tmp_path, capsys):
    params, like = params_of(Compact()), params_of(Setup())
    for name, tree in {"old": params, "like": like}.items():
        write(tmp_path / f"{name}{suffix}", jax.device_get(tree))
    old, new, out = (
        str(tmp_path / f"{name}{suffix}") for name in ("old", "like", "out")
    )

    assert main(["migrate-params", old, "--like", new]) == 0
    printed = capsys.readouterr().out
    assert "params/LSTMCell_0 -> params/rnns_0/cell\n" in printed
    assert not (tmp_path / f"out{suffix}").exists()
    assert main(["migrate-params", old, "--like", new, "--write", out]) == 0
    moved = read(tmp_path / f"out{suffix}")
    jax.tree.map(np.testing.assert_array_equal, moved, renaming.rename(params, like))
    assert main(["migrate-params", out, "--like", new]) == 0
    assert capsys.readouterr().out.endswith("no name changes\n")


def tree(**modules):
    shapes = {name: {"kernel": np.zeros(shape)} for name, shape in modules.items()}
    return {"params": shapes}


def test_numbers_in_names_sort_as_numbers():
    old = tree(**{f"Dense_{k}": (3, 3) for k in range(12)})
    new = tree(**{f"layers_{k + 1}": (3, 3) for k in range(12)})
    expected = {f"params/Dense_{k}": f"params/layers_{k + 1}" for k in range(12)}
    assert renaming.mapping(old, new) == expected
    # Those that shift keep their order.
    old, new = tree(a_1=(3, 3), a_2=(3, 3)), tree(a_0=(3, 3), a_1=(3, 3))
    assert renaming.mapping(old, new) == {
        "params/a_1": "params/a_0",
        "params/a_2": "params/a_1",
    }


def test_modules_without_an_order_are_not_guessed():
    old, new = tree(a_0=(3, 3), a_1=(3, 3)), tree(actor=(3, 3), critic=(3, 3))
    with pytest.raises(ValueError, match="must match one to one"):
        renaming.mapping(old, new)
    same = tree(a=(3, 3), b=(3, 3))
    with pytest.raises(ValueError, match="each module once"):
        both = {"params/a": "params/b", "params/b": "params/b"}
        renaming.mapping(same, same, both)
    swapped = {"params/a": "params/b", "params/b": "params/a"}
    assert renaming.mapping(same, same, swapped) == swapped


def test_unmatched_modules_are_named_and_can_be_mapped_by_hand():
    old, new = tree(a=(3, 3), b=(3, 3)), tree(c=(3, 3), d=(2, 3))
    with pytest.raises(ValueError) as caught:
        renaming.mapping(old, new)
    assert str(caught.value).splitlines() == [
        "modules of `params` and `like` must match one to one:",
        "  params/a could be params/c: kernel (3, 3)",
        "  params/b could be params/c: kernel (3, 3)",
        "  params/d of `like` has no equal in `params`: kernel (2, 3)",
        "Match them by hand: pass `names`, or `--name params/a=params/c` on the "
        "command line.",
    ]
    message = "'params/a' with kernel .3, 3., and 'params/d' with kernel .2, 3.\\."
    with pytest.raises(ValueError, match=message):
        renaming.mapping(old, new, {"params/a": "params/d"})
    with pytest.raises(ValueError, match="some of params/a, params/b; got 'a'"):
        renaming.mapping(old, new, {"a": "params/d"})
    names = {"params/a": "params/d", "params/b": "params/c"}
    moved = renaming.mapping(old, tree(c=(3, 3), d=(3, 3)), names)
    assert moved == names


def test_shapes_that_do_not_match_are_shown():
    old, new = tree(a=(3, 3), b=(4, 3)), tree(a=(3, 3), c=(5, 3), d=(5, 5))
    old["params"]["e"] = {"scale": np.zeros(2), "bias": np.zeros(1)}
    new["params"]["f"] = {"scale": np.zeros(3), "bias": np.zeros(1)}
    old["params"]["g"] = {name: np.zeros(k) for k, name in enumerate("vwxyz")}
    with pytest.raises(ValueError) as caught:
        renaming.mapping(old, new)
    assert str(caught.value).splitlines()[1:] == [
        "  params/b has no equal in `like`: kernel (4, 3)",
        "  params/e has no equal in `like`: bias (1,), scale (2,)",
        "  params/g has no equal in `like`: v (0,), w (1,), x (2,), 2 more",
        "  params/c of `like` has no equal in `params`: kernel (5, 3)",
        "  params/d of `like` has no equal in `params`: kernel (5, 5)",
        "  params/f of `like` has no equal in `params`: bias (1,), scale (3,)",
    ]


def is_matrix(params):
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


OPTIMIZERS = {
    "schedule": optax.sgd(optax.linear_schedule(0.1, 0.01, 10)),
    "trace": optax.sgd(0.1, momentum=0.9),
    "chain": optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(optax.constant_schedule(0.1))
    ),
    "masked": optax.masked(optax.adam(0.1), is_matrix),
    "hyperparameters": optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
    # Its moments have other shapes than the parameters.
    "factored": optax.adafactor(0.1, min_dim_size_to_factor=2),
}


# What a state has as its `params`, of the variables of a model.
KEPT = {
    "params": lambda variables: variables["params"],
    "variables": lambda variables: variables,
    "frozen": freeze,
}


# One object each: `jit` compiles a step again for every other `apply_fn`.
OLD_MODEL, NEW_MODEL = Compact(), Setup()


def start(model, optimizer, kept):
    variables = KEPT[kept](params_of(model))
    tx = OPTIMIZERS[optimizer]
    return TrainState.create(apply_fn=model.apply, params=variables, tx=tx)


def variables_of(params):
    return params if "params" in params else {"params": params}


@jax.jit
def step(state):
    def loss(params):
        return jnp.mean((state.apply_fn(variables_of(params), X) - 1) ** 2)

    return state.apply_gradients(grads=jax.grad(loss)(state.params))


@pytest.mark.parametrize(
    "optimizer, kept, new_kept, like",
    by_level(
        [(name, "params", "params", "state") for name in OPTIMIZERS]
        + [("trace", kept, kept, by) for kept in KEPT for by in ("variables", "params")]
        + [("trace", "variables", "variables", "state")]
        # A whole state in `like` has the new structure.
        + [("trace", "variables", "params", "state")]
        + [("trace", "params", "variables", "state")],
        [("trace", "variables", "variables", "params")],
    ),
)
def test_training_goes_on_under_other_names(optimizer, kept, new_kept, like):
    old = step(step(start(OLD_MODEL, optimizer, kept)))
    new = start(NEW_MODEL, optimizer, new_kept)
    variables = params_of(NEW_MODEL)
    known = {
        "state": serialization.to_state_dict(new),
        "variables": freeze(variables) if kept == "frozen" else variables,
        "params": variables["params"],
    }[like]

    moved = renaming.rename(serialization.to_state_dict(old), known)
    new = step(serialization.from_state_dict(new, moved))

    old = step(old)
    assert new.step == 3
    expected, y = (
        compiled(model)(variables_of(state.params), X)
        for model, state in ((OLD_MODEL, old), (NEW_MODEL, new))
    )
    np.testing.assert_allclose(y, expected, atol=1e-5)


def leaves(*paths):
    """Returns a tree of arrays that can be told apart, and of numbers."""
    flat = {path: np.full((3,), k) for k, path in enumerate(paths)}
    return traverse_util.unflatten_dict(flat, sep="/") | {"step": 7, "name": "run"}


STATES = {
    "averages": (["params/a/w", "ema/a/w"], ["params/b/w"], ["params/b/w", "ema/b/w"]),
    "variables as parameters": (
        ["params/params/a/w", "mu/params/a/w"],
        ["params/params/b/w", "mu/params/b/w"],
        ["params/params/b/w", "mu/params/b/w"],
    ),
    "variables of a layer": (
        ["params/params/w", "mu/params/w"],
        ["params/w"],
        ["params/params/w", "mu/params/w"],
    ),
    "a layer that is called params": (
        ["params/params/w", "params/a/v", "mu/params/w", "mu/a/v"],
        ["params/b/w", "params/c/v"],
        ["params/b/w", "params/c/v", "mu/b/w", "mu/c/v"],
    ),
    "a state in a checkpoint": (
        ["model/params/a/w", "model/mu/a/w", "data/0"],
        ["params/b/w"],
        ["model/params/b/w", "model/mu/b/w", "data/0"],
    ),
    "other collections": (
        ["params/a/w", "batch_stats/a/mean", "mu/a/w"],
        ["params/b/w", "batch_stats/b/mean"],
        ["params/b/w", "batch_stats/b/mean", "mu/b/w"],
    ),
    "two networks": (
        ["p/params/a/w", "p/mu/a/w", "q/params/a/w", "q/mu/a/w"],
        ["p/params/b/w", "q/params/c/w"],
        ["p/params/b/w", "p/mu/b/w", "q/params/c/w", "q/mu/c/w"],
    ),
    "another optimizer": (
        ["params/a/w", "opt/0/trace/a/w", "opt/1/x"],
        ["params/b/w", "opt/0/mu/b/w", "opt/0/nu/b/w", "opt/2/y"],
        ["params/b/w", "opt/0/trace/b/w", "opt/1/x"],
    ),
}


@pytest.mark.parametrize("old, new, expected", STATES.values(), ids=STATES)
def test_optimizer_states_follow_their_parameters(old, new, expected):
    moved = renaming.rename(leaves(*old), leaves(*new))
    jax.tree.map(np.testing.assert_array_equal, moved, leaves(*expected))


@pytest.mark.parametrize("levels", range(3))
@pytest.mark.parametrize("new_levels", range(3))
def test_parameters_stay_at_their_level(levels, new_levels):
    def named(module, levels):
        return traverse_util.unflatten_dict({("params",) * levels + (module, "w"): X})

    moved = renaming.rename(named("a", levels), named("b", new_levels))
    jax.tree.map(np.testing.assert_array_equal, moved, named("b", levels))


def test_subtrees_without_arrays_stay():
    old, new = tree(a=(3, 3)), tree(b=(3, 3))
    rest = {"step": 7, "opt_state": {"0": {}, "1/x": {"count": np.int32(3)}}}
    moved = renaming.rename(old | rest, new)
    assert {name: moved[name] for name in rest} == rest
    assert renaming.mapping(old | rest, new) == {"params/a": "params/b"}


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def saved(path, **modules):
    params = {
        name: {"kernel": np.arange(6.0).reshape(shape)}
        for name, shape in modules.items()
    }
    # As `flax.training.checkpoints` wrote a state before Orbax.
    opt_state = {"0": {"count": np.int32(5), "trace": params}, "1": {}}
    state = {"step": 5, "params": params, "opt_state": opt_state}
    path.write_bytes(serialization.to_bytes(state))
    return state


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise.npz").write_bytes(b"\xc1 no")
    (tmp_path / "list").write_bytes(serialization.msgpack_serialize([1, 2]))
    (tmp_path / "orbax").mkdir()
    saved(tmp_path / "two", a=(2, 3), b=(2, 3))
    saved(tmp_path / "like", head=(2, 3))
    return saved(tmp_path / "checkpoint_10", a=(2, 3))


@pytest.mark.parametrize("name", ["checkpoint_0", "checkpoint_0.5", "x.msgpack"])
def test_checkpoints_can_have_any_name(name, checkpoints, capsys):
    words = ["migrate-params", "checkpoint_10", "--like", "like"]
    assert main(words) == 0
    moves = "opt_state/0/trace/a -> opt_state/0/trace/head\nparams/a -> params/head\n"
    assert capsys.readouterr().out == moves
    assert main([*words, "--write", name]) == 0
    params = {"head": checkpoints["params"]["a"]}
    opt_state = {"0": {"count": np.int32(5), "trace": params}, "1": {}}
    expected = {"step": 5, "params": params, "opt_state": opt_state}
    written = serialization.msgpack_restore(Path(name).read_bytes())
    np.testing.assert_equal(written, expected)


def test_existing_files_are_replaced_only_with_force(checkpoints, capsys):
    words = ["migrate-params", "checkpoint_10", "--like", "like", "--write"]
    for name in ("checkpoint_10", "like", "./noise.npz"):
        before = Path(name).read_bytes()
        assert main([*words, name]) == 2
        error = capsys.readouterr().err
        assert error == f"error: {Path(name)} exists. Pass --force to replace it.\n"
        assert Path(name).read_bytes() == before
    assert main([*words, "checkpoint_10", "--force"]) == 0
    assert main([*words[:-1]]) == 0
    assert capsys.readouterr().out.endswith("no name changes\n")
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    "words, message",
    [
        ("none --like like", "error: no such file: none\n"),
        ("like --like none.safetensors", "error: no such file: none.safetensors\n"),
        ("like --like like --write no/x", "error: no such folder: no\n"),
        ("noise.npz --like like", "noise.npz must hold the bytes of"),
        ("list --like like", "expected a dictionary, got list"),
        ("orbax --like like", "orbax is a folder. Restore an Orbax checkpoint"),
        ("like --like like --name b", "`--name` must be OLD=NEW, got 'b'"),
        ("like --like like --name b=c", "some of params/head; got 'b'."),
        (
            "like --like like --write x.safetensors",
            "x.safetensors: safetensors files hold only arrays, but ",
        ),
        ("two --like like", "or `--name params/a=params/head`"),
    ],
)
def test_errors_name_the_wrong_file_or_module(words, message, checkpoints, capsys):
    before = contents(Path())
    assert main(["migrate-params", *words.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error
    assert contents(Path()) == before


def test_the_command_that_rewrites_code_is_named(capsys):
    assert main(["migrate", "src/", "--write"]) == 2
    error = capsys.readouterr().err
    assert "`rnncells-migrate`" in error and error.count("\n") == 1

"""Parameters move between modules that hold the same cells."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnncells
from rnncells.interop import renaming
from rnncells.migrate.cli import main
from rnncells.migrate.params import read, write

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


@pytest.mark.parametrize("old, new", PAIRS, ids=lambda model: type(model).__name__)
def test_a_model_runs_on_the_parameters_of_another_layout(old, new):
    params = jax.jit(old.init)(KEY, X)
    like = jax.eval_shape(new.init, KEY, X)

    moved = renaming.rename(params, like)

    assert jax.tree.structure(moved) == jax.tree.structure(like)
    # Equal widths could change places.
    np.testing.assert_allclose(new.apply(moved, X), old.apply(params, X), atol=1e-6)
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
    params = jax.jit(Compact().init)(KEY, X)
    like = jax.jit(Setup().init)(jax.random.key(9), X)
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
    assert capsys.readouterr().out.endswith("all names stay\n")


@pytest.mark.parametrize(
    "words, message",
    [
        (["old.npz", "--like", "old.npz"], "old.npz must end in .msgpack or"),
        (["old.msgpack", "--like", "old.msgpack"], "is no file of Flax's bytes"),
        (["none.msgpack", "--like", "none.msgpack"], "No such file"),
        (
            ["old.npz", "--like", "a", "--name", "b"],
            "`--name` must be OLD=NEW, got 'b'",
        ),
    ],
)
def test_mistakes_are_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.msgpack").write_bytes(b"\xc1 no")
    assert main(["migrate-params", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1


def tree(**modules):
    shapes = {name: {"kernel": np.zeros(shape)} for name, shape in modules.items()}
    return {"params": shapes}


def test_numbers_in_names_count_as_numbers():
    old = tree(**{f"Dense_{k}": (3, 3) for k in range(12)})
    new = tree(**{f"layers_{k}": (3, 3) for k in range(12)})
    moved = renaming.mapping(old, new)
    assert moved["params/Dense_10"] == "params/layers_10"


def test_numbers_that_shift_keep_their_order():
    old, new = tree(a_1=(3, 3), a_2=(3, 3)), tree(a_0=(3, 3), a_1=(3, 3))
    assert renaming.mapping(old, new) == {
        "params/a_1": "params/a_0",
        "params/a_2": "params/a_1",
    }


def test_what_has_no_order_is_not_guessed():
    old, new = tree(a_0=(3, 3), a_1=(3, 3)), tree(actor=(3, 3), critic=(3, 3))
    with pytest.raises(ValueError, match="modules must match one to one"):
        renaming.mapping(old, new)
    same = tree(a=(3, 3), b=(3, 3))
    with pytest.raises(ValueError, match="each module once"):
        both = {"params/a": "params/b", "params/b": "params/b"}
        renaming.mapping(same, same, both)
    swapped = {"params/a": "params/b", "params/b": "params/a"}
    assert renaming.mapping(same, same, swapped) == swapped


def test_what_does_not_match_is_named_and_may_be_matched_by_hand():
    old, new = tree(a=(3, 3), b=(3, 3)), tree(c=(3, 3), d=(2, 3))
    with pytest.raises(ValueError, match=r"\['params/a', 'params/b'\] and \['params/c"):
        renaming.mapping(old, new)
    with pytest.raises(ValueError, match=r"\[\] and \['params/d'\]"):
        renaming.mapping(tree(a=(3, 3)), tree(c=(3, 3), d=(2, 3)))
    with pytest.raises(ValueError, match="must match modules of the same parameters"):
        renaming.mapping(old, new, {"params/a": "params/d"})
    names = {"params/a": "params/d", "params/b": "params/c"}
    moved = renaming.mapping(old, tree(c=(3, 3), d=(3, 3)), names)
    assert moved == names

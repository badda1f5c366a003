"""Weights of other libraries: same outputs and gradients, what comes back, files."""

import os
import sys
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    BATCH,
    FEATURES,
    FEATURES_IN,
    TIME,
    assert_close,
    assert_equal,
    random_like,
    under_cell,
)
from levels import by_level
from libraries import (
    DEEP,
    HAS,
    KINDS,
    LIBRARIES,
    MERGES,
    RUN,
    SHAPES,
    TOLERANCE,
    WITHOUT_BIAS,
    draw_params,
    make_layer,
    peer,
)

import rnncells
from rnncells.interop import equinox, files, haiku, keras, pytorch

CONFIGS = [
    (library, kind, shape, use_bias, "float32" if library == "keras" else dtype)
    for library in RUN
    for kind in HAS[library]
    for shape, use_bias, dtype in (
        ("cell", True, "float64"),
        ("RNN", False, "float64"),
        ((2, True), True, "float32"),
    )
    if shape == (2, True) or library != "jax_rnn"
    if shape != (2, True) or kind[0] in "LG"
    if use_bias or library in WITHOUT_BIAS
]
CONFIGS += [
    ("keras", "GRU", "Bidirectional", True, "float32"),
    ("haiku", "LSTM", (2, False), True, "float64"),
    ("equinox", "LSTM", "Bidirectional", True, "float64"),
    ("jax_rnn", "LSTM", (1, False), True, "float64"),
]
# Without gradients, and with gradients for one cell at a time.
CONFIGS = [
    (*config, has_gradients)
    for config in CONFIGS
    for has_gradients in (False, True)
    if not has_gradients or config[2] in ("cell", (1, False))
]


def is_in_every_run(library, kind, shape, use_bias, dtype, has_gradients):
    if shape == "cell" and kind in ("GRU", "GRU-reset-before") and not has_gradients:
        return (library, kind) in (("keras", "GRU"), ("haiku", "GRU-reset-before"))
    # With gradients of one library, because a gradient has no code of its own here.
    if kind == "LSTM" and shape == "cell" and use_bias:
        return has_gradients == (library == "haiku")
    return (library, kind, shape) == ("jax_rnn", "LSTM", (2, True))


# Keras reads its variables so.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(
    "library, kind, shape, use_bias, dtype, has_gradients",
    by_level(CONFIGS, [row for row in CONFIGS if is_in_every_run(*row)]),
)
def test_loaded_weights_give_the_other_librarys_numbers(
    library, kind, shape, use_bias, dtype, has_gradients, rng
):
    with jax.enable_x64(dtype == "float64"):
        weights, run = RUN[library](rng, kind, shape, use_bias, dtype)
        layer = make_layer(kind, shape, use_bias=use_bias, param_dtype=dtype)
        x = jnp.asarray(rng.standard_normal((BATCH, TIME, FEATURES_IN)), dtype)

        def ours(weights, x):
            variables = LIBRARIES[library][0](layer, weights)
            if shape == "cell":
                return rnncells.RNN(layer).apply(under_cell(variables), x)
            y = layer.apply(variables, x)
            return y[0] if shape in DEEP else y

        @partial(jax.jit, static_argnums=0)
        def outputs_and_gradients(function, weights, x):
            if not has_gradients:
                return function(weights, x)
            y, pull = jax.vjp(function, weights, x)
            return y, pull(jnp.cos(jnp.arange(y.size, dtype=dtype)).reshape(y.shape))

        actual = outputs_and_gradients(ours, weights, x)
        expected = outputs_and_gradients(run, weights, x)
        assert_close(actual, expected, TOLERANCE[dtype], TOLERANCE[dtype])


def few_bits(tree):
    """Returns multiples of 1/1024, to which 1 can be added without rounding."""
    return jax.tree.map(
        lambda leaf: jnp.asarray(
            (np.asarray(leaf, float) * 1024).round() / 1024, leaf.dtype
        ),
        tree,
    )


def without(weights, *names):
    return {name: array for name, array in weights.items() if name not in names}


ROUND_TRIPS = [
    (library, kind, use_bias, shape)
    for library, kinds in HAS.items()
    for kind in kinds
    for use_bias in (True, False)
    for shape in (SHAPES[library] if use_bias else ["cell", (2, True)])
    if use_bias or library in WITHOUT_BIAS
]


@pytest.mark.parametrize(
    "library, kind, use_bias, shape",
    by_level(
        ROUND_TRIPS,
        [
            *(
                (library, "LSTM", True, "cell")
                for library in HAS
                if library != "jax_rnn"
            ),
            *((library, HAS[library][-1], False, "cell") for library in WITHOUT_BIAS),
            ("pytorch", "GRU", True, (2, True)),
        ],
    ),
)
def test_weights_come_back_bit_identically(library, kind, use_bias, shape, rng):
    from_theirs, to_theirs = LIBRARIES[library]
    draw = few_bits if (library, kind) == ("haiku", "LSTM") else lambda tree: tree
    layer = make_layer(kind, shape, use_bias=use_bias)
    ours = draw(draw_params(rng, layer))
    theirs = to_theirs(layer, ours)
    assert_equal(from_theirs(layer, theirs), ours)
    if kind not in MERGES[library] or not use_bias:
        theirs = draw(random_like(rng, theirs))
        assert_equal(to_theirs(layer, from_theirs(layer, theirs)), theirs)


def test_forget_bias_of_haiku_is_rounded_where_haiku_cannot_hold_it(rng):
    cell = rnncells.LSTMCell(FEATURES)
    variables = draw_params(rng, cell)

    def there_and_back(bias):
        ours = variables["params"]["hf"] | {"bias": jnp.asarray(bias, jnp.float32)}
        variables["params"]["hf"] = ours
        back = haiku.from_params(cell, haiku.to_params(cell, variables))
        theirs = back["params"].pop("hf")
        assert_equal(back["params"], without(variables["params"], "hf"))
        assert_equal(theirs["kernel"], ours["kernel"])
        return jnp.abs(theirs["bias"] - ours["bias"])

    assert not there_and_back([0.5, 0.7654321, 3.1415927, 16777215.0]).any()
    error = there_and_back([1e-3, -0.3, 0.1234567, -0.98765431])
    assert error.any() and (error <= 2.0**-24).all()


@pytest.mark.parametrize("library", by_level(LIBRARIES, 1))
def test_both_ways_can_be_compiled_and_keep_the_param_dtype(library, rng):
    from_theirs, to_theirs = LIBRARIES[library]
    layer = make_layer("LSTM", (1, False), param_dtype=jnp.bfloat16)
    ours = few_bits(draw_params(rng, layer))
    theirs = jax.jit(partial(to_theirs, layer))(ours)
    wider = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), theirs)
    loaded = from_theirs(layer, wider)
    assert jax.tree.leaves(loaded)[0].dtype == jnp.bfloat16
    integers = jax.tree.map(lambda leaf: np.asarray(8 * leaf, np.int32), wider)
    numbers = jax.tree.map(np.float32, integers)
    assert_equal(from_theirs(layer, integers), from_theirs(layer, numbers))
    compiled = jax.jit(partial(from_theirs, layer))
    for given in (theirs, wider, jax.tree.map(jnp.asarray, wider)):
        assert_equal(compiled(given), loaded)


BAD = np.ones((2, 3), np.float32)
# What is done to the weights of an LSTM of two layers, and what the error must name.
# Where the width of inputs is not known, other weights of inputs are not blamed.
BROKEN = {
    "pytorch": (
        lambda w: without(w, "weight_hh_l1") | {"weight_hr_l0": BAD, "bias_ih_l0": BAD},
        "missing: weight_hh_l1 / unknown: weight_hr_l0 / bias_ih_l0 must be (16,)",
    ),
    "keras": (
        lambda w: [w[0], BAD, *w[2:], BAD],
        "unknown: weights[6] / weights[1] (recurrent_kernel of layers_0/cell) must",
    ),
    "keras, short": (
        lambda w: [BAD[0], *w[1:5]],
        "missing: weights[5] (bias of layers_1/cell) / weights[0] (kernel of "
        "layers_0/cell) must be (None, 16), got (3,)",
    ),
    "haiku": (
        lambda w: {"lstm/linear": {"w": BAD}, "dense": {"b": BAD}},
        "missing: lstm/linear/b / missing: lstm_1/linear/b / missing: lstm_1/linear/w "
        "/ unknown: dense/b / lstm/linear/w must be (5, 16), got (2, 3)",
    ),
    "equinox": (
        lambda w: [without(w[0], "weight_hh") | {"bias": BAD}, w[1] | {"bias_n": BAD}],
        "missing: modules[0].weight_hh / unknown: modules[1].bias_n / "
        "modules[0].bias must be (16,)",
    ),
    "jax_rnn": (lambda w: w[:-1], "must be a vector of 256 + 16 * features_in numbers"),
}


@pytest.mark.parametrize("broken", by_level(BROKEN, 3))
def test_one_error_names_all_that_does_not_fit(broken, rng):
    library = broken.partition(",")[0]
    from_theirs, to_theirs = LIBRARIES[library]
    layer = make_layer("LSTM", (2, "width" in broken))
    change, named = BROKEN[broken]
    weights = change(to_theirs(layer, draw_params(rng, layer)))
    with pytest.raises(ValueError) as error:
        from_theirs(layer, weights)
    for part in named.split(" / "):
        assert part in str(error.value)
    assert str(error.value).count("\n") == named.count(" / ") + (library != "jax_rnn")


class LeakyLSTMCell(rnncells.LSTMCell):
    """A user's: with the parameters of an LSTM, and another step."""

    def recur(self, carry, projected):
        (c, h), _ = super().recur(carry, projected)
        return (0.9 * c, h), h


OTHERS = [
    (library, make_layer(kind, (1, False)))
    for library, kinds in HAS.items()
    for kind in KINDS
    if kind not in kinds
]
OTHERS += [
    *((library, LeakyLSTMCell(FEATURES)) for library in LIBRARIES),
    ("pytorch", rnncells.MGUCell(FEATURES)),
    ("pytorch", rnncells.LSTMCell(FEATURES, gate_fn=nn.hard_sigmoid)),
    ("pytorch", rnncells.SimpleCell(FEATURES, activation_fn=nn.gelu)),
    ("keras", rnncells.RNN(rnncells.SimpleCell(FEATURES, residual=True))),
    ("keras", rnncells.ConvLSTMCell(FEATURES, (2,), use_bias=False)),
    ("keras", rnncells.ConvLSTMCell(FEATURES, (2,), peepholes=True)),
    ("haiku", rnncells.LSTM(FEATURES, use_bias=False)),
    ("haiku", rnncells.LSTMCell(FEATURES, activation_fn=nn.relu)),
    ("equinox", rnncells.GRUCell(FEATURES, gate_fn=nn.hard_sigmoid)),
    ("jax_rnn", rnncells.RNN(rnncells.LSTMCell(FEATURES))),
    ("jax_rnn", rnncells.LSTM(FEATURES, use_bias=False)),
]


@pytest.mark.parametrize("library, layer", OTHERS)
def test_a_cell_that_the_other_library_has_not_is_refused(library, layer, rng):
    from_theirs, to_theirs = LIBRARIES[library]
    nothing = {"keras": [], "equinox": [], "jax_rnn": np.ones(3)}.get(library, {})
    with pytest.raises(TypeError, match=r"`layer` must .*(Cell|LSTM).*got "):
        from_theirs(layer, nothing)
    variables = draw_params(rng, layer)
    with pytest.raises(TypeError, match=r"`layer` must .*(Cell|LSTM).*got "):
        to_theirs(layer, variables)


@pytest.mark.parametrize("library", by_level(LIBRARIES, 2))
def test_variables_that_no_library_could_hold_are_refused(library, rng):
    to_theirs = LIBRARIES[library][1]
    layer, other = make_layer("LSTM", (1, False)), make_layer("GRU", (2, False))
    with pytest.raises(
        ValueError, match="missing: layers_0/cell/hf/bias(.|\n)*unknown"
    ):
        to_theirs(layer, draw_params(rng, other))
    with pytest.raises(ValueError, match="must have the key 'params'"):
        to_theirs(layer, draw_params(rng, layer)["params"])
    learns = rnncells.LSTM(FEATURES, learn_states=True)
    with pytest.raises(ValueError, match="`learn_states` of `layer` must be False"):
        to_theirs(learns, draw_params(rng, learns))
    loaded = LIBRARIES[library][0](learns, to_theirs(layer, draw_params(rng, layer)))
    assert not loaded["params"]["h_0"].any()


def test_parts_of_a_larger_model_are_found_by_name(rng):
    layer = make_layer("LSTM", (2, False))
    variables = draw_params(rng, layer)
    tensors = pytorch.to_state_dict(layer, variables, "a.lstm.") | {"a.bias": BAD}
    assert_equal(pytorch.from_state_dict(layer, tensors, "a.lstm."), variables)
    for prefix in ("", "a."):
        with pytest.raises(ValueError, match=f"`: 'a.lstm.', got '{prefix}'"):
            pytorch.from_state_dict(layer, tensors, prefix)

    variables = few_bits(variables)
    names = ["a/~/lstm", "a/~/lstm_1"]
    params = haiku.to_params(layer, variables, names) | {"a/~/lstm_2": {"w": BAD}}
    assert_equal(haiku.from_params(layer, params, names), variables)
    with pytest.raises(ValueError, match="`names` must be the names of 2 cores"):
        haiku.from_params(layer, params, "a/~/lstm")
    with pytest.raises(ValueError, match="`names` must all differ"):
        haiku.to_params(layer, variables, ["a", "a"])
    with pytest.raises(TypeError, match="`params` must be {module_name"):
        haiku.from_params(layer, {"w": BAD})


@pytest.mark.parametrize("cores", [("lstm", "lstm_1"), ("lstm",)])
def test_cores_inside_one_module_of_haiku_are_found(cores, rng):
    layer = make_layer("LSTM", (len(cores), False))
    variables = few_bits(draw_params(rng, layer))
    inside = [f"my_model/~/lstm/~/{core}" for core in cores]
    params = haiku.to_params(layer, variables, inside)
    assert_equal(haiku.from_params(layer, params), variables)
    with pytest.raises(ValueError, match="several: .'my_model/~/lstm/~/lstm', 'other"):
        haiku.from_params(layer, params | {"other/lstm/linear": {"w": BAD}})
    with pytest.raises(ValueError, match="unknown: my_model/linear/w"):
        haiku.from_params(layer, params | {"my_model/linear": {"w": BAD}})


@pytest.mark.parametrize(
    "names", by_level(["{}_{}", "parametrizations.{}.original{}"], 1)
)
def test_weight_norm_of_pytorch_is_multiplied_out(names, rng):
    layer = make_layer("LSTM-projected", (2, True))
    variables = draw_params(rng, layer)
    tensors = pytorch.to_state_dict(layer, variables, "a.lstm.")
    # Norms of rows, of columns, and of a whole tensor.
    axes = {"weight_hh_l0": 1, "weight_ih_l1_reverse": 0, "weight_hr_l1": None}
    for name, axis in axes.items():
        w = np.asarray(tensors.pop(f"a.lstm.{name}"))
        g = np.linalg.norm(w, axis=axis, keepdims=axis is not None)
        for part, array in zip("gv" if names[0] == "{" else "01", (g, 3 * w)):
            tensors[f"a.lstm.{names.format(name, part)}"] = array
    loaded = pytorch.from_state_dict(layer, tensors, "a.lstm.")
    assert_close(loaded, variables)
    with pytest.raises(ValueError, match="`: 'a.lstm.', got ''"):
        pytorch.from_state_dict(layer, tensors)
    for shape in [(9, 1), (FEATURES,), (1, 1, 1)]:
        length = names.format("weight_hh_l0", "g" if names[0] == "{" else "0")
        bad = {f"a.lstm.{length}": np.ones(shape)}
        with pytest.raises(ValueError, match=r"size 1 or that of `a\.lstm\..*weight"):
            pytorch.from_state_dict(layer, tensors | bad, "a.lstm.")


@pytest.mark.parametrize("size", by_level([1e-4, 300], 1))
def test_norms_of_half_precision_neither_vanish_nor_overflow(size, rng):
    layer = make_layer("GRU", (1, False))
    tensors = pytorch.to_state_dict(layer, draw_params(rng, layer))
    v = np.float16(size * rng.uniform(0.5, 1, tensors["weight_hh_l0"].shape))
    tensors |= {"weight_hh_l0_g": np.ones((len(v), 1), np.float16)}
    del tensors["weight_hh_l0"]
    half, single = (
        pytorch.from_state_dict(layer, tensors | {"weight_hh_l0_v": array})
        for array in (v, np.float32(v))
    )
    assert_close(half, single)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_two_biases_of_old_keras_layers_for_cudnn_are_loaded(kind, rng):
    """CuDNNLSTM and CuDNNGRU have matrices `(units, features_in)` of each gate."""
    layer, width = make_layer(kind, "RNN"), (3 + (kind == "LSTM")) * FEATURES
    variables = draw_params(rng, layer)
    *kernels, bias = map(np.asarray, keras.to_weights(layer, variables))

    def for_cudnn(kernel):
        gates = np.split(kernel, width // FEATURES, axis=1)
        return np.concatenate([w.T.ravel().reshape(w.shape) for w in gates], axis=1)

    # The biases of inputs and states add up, but for the candidate of a GRU.
    biases = bias if kind == "GRU" else np.stack([bias, np.zeros(width, bias.dtype)])
    moved = rng.standard_normal(width).astype(bias.dtype)
    moved[2 * FEATURES :] *= kind == "LSTM"
    biases = np.concatenate([biases[0] + moved, biases[1] - moved])
    weights = [*map(for_cudnn, kernels), biases]
    assert_close(keras.from_weights(layer, weights), variables)
    # Other layers have no such biases.
    other = make_layer("GRU-reset-before", "cell")
    with pytest.raises(ValueError, match=rf"must be \(12,\), got \({2 * width},\)"):
        keras.from_weights(other, weights)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(
    "kernel, options",
    by_level(
        [
            ((3, 2), {"strides": (2, 1), "padding": "VALID"}),
            ((3,), {"padding": "SAME"}),
            ((2, 1, 3), {"padding": "SAME"}),
        ],
        [((3, 2), {"strides": (2, 1), "padding": "VALID"})],
    ),
)
def test_convolutional_lstm_of_keras(kernel, options, rng):
    os.environ.setdefault("KERAS_BACKEND", "jax")
    library = peer("keras")
    theirs = getattr(library.layers, f"ConvLSTM{len(kernel)}D")(
        FEATURES,
        kernel,
        return_sequences=True,
        **options | {"padding": options["padding"].lower()},
    )
    layer = rnncells.RNN(rnncells.ConvLSTMCell(FEATURES, kernel, **options))
    x = rng.standard_normal((BATCH, TIME, *(5, 4, 3)[: len(kernel)], FEATURES_IN))
    x = x.astype(np.float32)
    theirs.build(x.shape)
    weights = random_like(rng, theirs.get_weights())
    theirs.set_weights(weights)
    loaded = keras.from_weights(layer, weights)
    assert_close(layer.apply(loaded, x), np.asarray(theirs(x)))
    assert_close(keras.to_weights(layer, loaded), weights)
    ours = random_like(rng, loaded)
    theirs.set_weights(list(map(np.asarray, keras.to_weights(layer, ours))))
    assert_close(layer.apply(ours, x), np.asarray(theirs(x)))


def test_bfloat16_of_pytorch_is_loaded(torch, rng):
    layer = make_layer("GRU", (1, False))
    state_dict = torch.nn.GRU(FEATURES_IN, FEATURES).to(torch.bfloat16).state_dict()
    wide = {name: tensor.float() for name, tensor in state_dict.items()}
    loaded = pytorch.from_state_dict(layer, state_dict)
    assert_equal(loaded, pytorch.from_state_dict(layer, wide))
    apart = {k: torch.stack([v, v], -1)[..., 0] for k, v in state_dict.items()}
    assert_equal(loaded, pytorch.from_state_dict(layer, apart))
    learns = {k: v.requires_grad_() for k, v in state_dict.items()}
    with pytest.raises(TypeError, match="got Tensor: .*requires grad"):
        pytorch.from_state_dict(layer, learns)


def test_dropout_does_not_change_what_is_loaded(rng):
    plain = make_layer("LSTM", (2, False))
    variables = draw_params(rng, plain)
    layer = plain.clone(dropout=0.5)
    tensors = pytorch.to_state_dict(layer, variables)
    assert_equal(pytorch.from_state_dict(layer, tensors), variables)

    cell = rnncells.VariationalGRUCell(
        FEATURES, input_rate=0.5, recurrent_rate=0.5, rng_collection="masks"
    )
    rnn = rnncells.RNN(cell, split_rngs={"params": False, "masks": False})
    variables = draw_params(rng, rnncells.RNN(rnncells.GRUCell(FEATURES)))
    weights = keras.to_weights(rnn, variables)
    assert_equal(keras.from_weights(rnn, weights), variables)


def test_haiku_may_have_one_bias(rng):
    layer = make_layer("relu", (2, False))
    variables = draw_params(rng, layer)
    params = haiku.to_params(layer, variables, double_bias=False)
    assert "b" not in params["vanilla_rnn_1/linear_1"]
    assert_equal(haiku.from_params(layer, params, double_bias=False), variables)
    with pytest.raises(ValueError, match="missing: vanilla_rnn/linear_1/b"):
        haiku.from_params(layer, params)


def test_equinox_cell_takes_the_arrays(rng):
    eqx = peer("equinox")
    cell = rnncells.GRUCell(FEATURES)
    variables = draw_params(rng, cell)
    (arrays,) = equinox.to_arrays(cell, variables)
    theirs = eqx.nn.GRUCell(FEATURES_IN, FEATURES, key=jax.random.key(0))
    theirs = eqx.tree_at(
        lambda cell: [getattr(cell, name) for name in arrays],
        theirs,
        list(arrays.values()),
    )
    assert_equal(equinox.from_module(cell, theirs), variables)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_variables_survive_save_and_load_bit_identically(dtype, rng, tmp_path):
    peer("safetensors")
    layer, path = make_layer("LSTM", (2, True), param_dtype=dtype), tmp_path / "a.st"
    variables = draw_params(rng, layer) | {"counts": {"steps": jnp.int32(7)}}
    files.save(path, variables, {"config": "{}"})
    like = jax.eval_shape(lambda: variables)
    assert_equal(files.load(path), variables)
    assert_equal(files.load(path, like), variables)
    assert files.load_metadata(path) == {"config": "{}"}
    wrong = {"params": variables["params"], "steps": like["counts"]["steps"]}
    with pytest.raises(ValueError, match="missing: steps\n.*unknown: counts/steps"):
        files.load(path, wrong)
    with pytest.raises(ValueError, match="must not contain `/`, got .'a/b'"):
        files.save(path, {"a/b": np.ones(2)})
    with pytest.raises(TypeError, match="`metadata` must map names to text"):
        files.save(path, variables, {"steps": 7})
    with pytest.raises(TypeError, match="`variables` must be nested dict.*got tuple"):
        files.save(path, (variables,))
    path.write_bytes(b"not safetensors")
    for read in (files.load, files.load_metadata):
        with pytest.raises(ValueError, match="`path` must be a safetensors file, got"):
            read(path)
    files.save(path, {})
    assert files.load(path) == {} and files.load_metadata(path) == {}


def test_pytorch_file_is_loaded(rng, tmp_path):
    library = peer("safetensors.numpy")
    layer, path = make_layer("LSTM", (2, True)), tmp_path / "torch.safetensors"
    variables = draw_params(rng, layer)
    tensors = pytorch.to_state_dict(layer, variables, "encoder.")
    library.save_file({k: np.asarray(v, order="C") for k, v in tensors.items()}, path)
    loaded = pytorch.from_state_dict(layer, files.load_arrays(path), "encoder.")
    assert_equal(loaded, variables)


def test_missing_safetensors_names_its_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    for call in (files.load, files.load_arrays, files.load_metadata):
        with pytest.raises(ImportError, match=r"pip install '\.\[interop\]'"):
            call(tmp_path / "a.safetensors")
    with pytest.raises(ImportError, match="needs safetensors"):
        files.save(tmp_path / "a.safetensors", {"w": np.ones(2)})

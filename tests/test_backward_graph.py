"""The backward graph: PyTorch's examples node for node, values, pictures, the page."""

import re
import runpy
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CELLS, assert_close, each_cell, random_params, random_setting
from jax.extend import core as jex
from levels import by_level

import rnncells
from rnncells.diagnostics import Accumulate, Cut, Operation, backward_graph

# Nodes whose class in PyTorch has another name than the node's and `Backward`.
TORCH = {
    "Accumulate": ("AccumulateGrad",),
    "Amax": ("Amax", "Max"),
    "Amin": ("Amin", "Min"),
    "Checkpoint": ("CheckpointFunction",),
    "Expand": ("Expand", "Unsqueeze"),
    "Split": ("Split", "UnsafeSplit"),
    "View": ("View", "UnsafeView", "ReshapeAlias"),
    "Permute": ("Permute", "Transpose"),
    "T": ("T", "Permute"),
}


def drawn(edge, output=0):
    """A graph in short: `("Mul", operand, operand)`, an argument's name, or None.

    Operands that are an output other than 0 are pairs with its number.
    """
    node = getattr(edge, "node", edge)
    if node is None:
        return None
    if isinstance(node, Accumulate):
        return node.argument
    operands = [
        drawn(after) if number == 0 else (drawn(after), number)
        for after, number in node.next_functions
    ]
    return (node.name, *operands)


def polynomial(a, b):
    return 3 * a**3 - b**2


def product(a, b, d):
    c = a * b
    return c * d


def first_and_last(x):
    first, _, last = x
    return first * last


def linear(params, x):
    return x @ params["weight"].T + params["bias"]


def lstm_cell(params, x, h, c):
    """The step of torch.nn.LSTMCell, in the order in which PyTorch computes it."""
    gates = linear(params["ih"], x) + linear(params["hh"], h)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    i, f, g, o = nn.sigmoid(i), nn.sigmoid(f), nn.tanh(g), nn.sigmoid(o)
    c = f * c + i * g
    return o * nn.tanh(c)


A, B = jnp.array([2.0, 3.0]), jnp.array([6.0, 4.0])


def test_polynomial_of_pytorchs_tutorial():
    """https://pytorch.org/tutorials/beginner/blitz/autograd_tutorial.html."""
    graph = backward_graph(polynomial, A, B)
    (result,) = graph.results
    assert drawn(result) == ("Sub", ("Mul", ("Pow", "a"), None), ("Pow", "b"))
    assert result.node.next_functions[0][0].next_functions[1] == (None, 0)
    gradients = graph.record(A, B).backward(jnp.ones(2))
    np.testing.assert_array_equal(gradients["a"], [36, 81])
    np.testing.assert_array_equal(gradients["b"], [-12, -8])


def test_operands_that_need_no_gradient_are_none():
    a, b, d = map(jnp.float32, (2, 3, 4))
    graph = backward_graph(product, a, b, d, argnums=(0, 2))
    node = graph.results[0].node
    assert drawn(node) == ("Mul", ("Mul", "a", None), "d")
    (mul, zero), (leaf, also_zero) = node.next_functions
    assert (mul.name, zero) == ("Mul", 0)
    assert (leaf.name, leaf.argument, also_zero) == ("Accumulate", "d", 0)
    assert mul.next_functions[1] == (None, 0)
    assert [edge.node for edge in mul.edges][1] is None
    assert graph.record(a, b, d).backward() == {"a": 12, "d": 6}


def test_single_indices_are_no_outputs_of_unbind():
    def last_first(x):
        second, first = (jax.lax.slice(x, (k,), (k + 1,), (1,)) for k in (1, 0))
        return jnp.squeeze(first, 0) * jnp.squeeze(second, 0)

    names = [node.name for node in backward_graph(last_first, A).operations]
    assert names == ["Mul", "Select", "Select"]


def test_dense_layer_lists_its_parameters_once():
    """Flax keeps weights as (in, out): nothing is transposed."""
    layer, x = nn.Dense(4), jnp.ones((5, 3))
    graph = backward_graph(layer.bind(layer.init(jax.random.key(0), x)), x)
    expected = ("Addmm", "params['bias']", "inputs", "params['kernel']")
    assert drawn(graph.results[0]) == expected


def lstm_arguments():
    def weights(features_in):
        return {"weight": jnp.ones((16, features_in)), "bias": jnp.ones(16)}

    params = {"ih": weights(3), "hh": weights(4)}
    return params, jnp.ones((2, 3)), jnp.zeros((2, 4)), jnp.zeros((2, 4))


@pytest.mark.several_devices
def test_nodes_have_the_device_of_their_values():
    first, second = jax.devices()[:2]
    a, b = jax.device_put(A, second), jax.device_put(B, second)
    graph = backward_graph(polynomial, a, b)
    assert {node.device for node in graph.nodes} == {f"cpu:{second.id}"}
    graph = backward_graph(polynomial, jax.device_put(A, first), b)
    devices = {node.label: node.device for node in graph.nodes}
    assert devices["Accumulate a"] == f"cpu:{first.id}"
    assert devices["Sub 3"] == f"cpu:{first.id}, cpu:{second.id}"
    struct = jax.ShapeDtypeStruct((2,), jnp.float32)
    graph = backward_graph(polynomial, struct, struct)
    assert {node.device for node in graph.nodes} == {None}


def test_second_backward_pass_adds_to_the_gradients():
    x = jnp.float32(2)
    graph = backward_graph(lambda x: x**3, x)
    tape = graph.record(x)
    assert tape.result == 8
    assert tape.backward(retain_graph=True) == {"x": 12}
    assert tape.gradients == {"x": 12}
    assert tape.backward() == {"x": 12}
    assert tape.gradients == {"x": 24}
    expected = (
        r"^`backward` needs the values that the forward pass saved, got a tape that "
        r"has released them: for example, Pow 0 needs 3 \* x\^2\. Pass "
        r"`retain_graph=True` to every call of `backward` but the last, or run "
        r"`graph.record` again\.$"
    )
    with pytest.raises(RuntimeError, match=expected):
        tape.backward()
    assert tape.gradients == {"x": 24}
    # Another forward pass is another tape.
    assert graph.record(x).backward() == {"x": 12}


def test_backward_pass_without_saved_values_can_be_repeated():
    """As in PyTorch: nothing was released."""
    tape = backward_graph(lambda a, b: (a + b).sum(), A, B).record(A, B)
    tape.backward()
    tape.backward()
    np.testing.assert_array_equal(tape.gradients["a"], [2, 2])


def test_gradients_of_an_argument_that_is_used_twice_are_added_up():
    graph = backward_graph(lambda x: x * x, A)
    (leaf,) = graph.leaves
    assert [edge.operand for _, edge in graph.incoming(leaf)] == ["x", "y"]
    gradients = graph.record(A).backward(jnp.ones(2))
    np.testing.assert_array_equal(gradients["x"], 2 * A)


# Functions of two matrices: code for both libraries, or one of JAX and one of PyTorch.
SINGLE = {
    "subtract a number": lambda a, b: a - 3,
    "divide": lambda a, b: a / b,
    "broadcast": lambda a, b: a * b[0],
    "power of a number": lambda a, b: a**2.5,
    "power": lambda a, b: a**b,
    "exp": (lambda a, b: jnp.exp(a), lambda torch, a, b: a.exp()),
    "abs": lambda a, b: abs(a),
    "maximum": (jnp.maximum, lambda torch, a, b: torch.maximum(a, b)),
    "relu": (lambda a, b: nn.relu(a), lambda torch, a, b: a.relu()),
    "log_softmax": (lambda a, b: nn.log_softmax(a), lambda t, a, b: a.log_softmax(1)),
    "clamp": (lambda a, b: jnp.clip(a, 0, 1), lambda torch, a, b: a.clamp(0, 1)),
    "where": (
        lambda a, b: jnp.where(a > 0, a, b),
        lambda torch, a, b: torch.where(a > 0, a, b),
    ),
    "matrices": lambda a, b: a @ b.T,
    "vectors": lambda a, b: a[0] @ b[1],
    "product and row": (
        lambda a, b: a @ b.T + b[:, 0],
        lambda torch, a, b: torch.addmm(mat2=b.T, input=b[:, 0], mat1=a),
    ),
    "sum": lambda a, b: a.sum(),
    "mean": lambda a, b: a.mean(),
    "standard deviation": lambda a, b: a.std(),
    "join": (lambda a, b: jnp.concatenate([a, b]), lambda t, a, b: t.cat([a, b])),
    "slice": lambda a, b: a[:, 1:],
    "rows by index": (
        lambda a, b: a[jnp.array([0, 0])],
        lambda torch, a, b: a[torch.tensor([0, 0])],
    ),
    "reshape": lambda a, b: a.reshape(-1),
    "repeat": (
        lambda a, b: jnp.broadcast_to(a, (4, 2, 3)),
        lambda torch, a, b: a.expand(4, 2, 3),
    ),
    "dtype": (
        lambda a, b: a.astype(jnp.bfloat16),
        lambda torch, a, b: a.to(torch.bfloat16),
    ),
}


def assert_equals_torch(graph, torch_result):
    """Walks both graphs: names, output numbers, and which nodes are one node."""
    matched, stack = {}, [(graph.results[0].node, torch_result.grad_fn)]
    while stack:
        node, function = stack.pop()
        if node is None or function is None:
            assert node is None and function is None
            continue
        if node in matched:
            assert matched[node] is function
            continue
        matched[node] = function
        short = re.sub(r"Backward\d*$", "", function.name().split("::")[-1])
        assert short in TORCH.get(node.name, (node.name,))
        following = function.next_functions
        assert [n for _, n in node.next_functions] == [n for _, n in following]
        pairs = zip(node.next_functions, following, strict=True)
        stack += [(ours, theirs) for (ours, _), (theirs, _) in pairs]
    assert len(set(matched.values())) == len(matched)
    operations = [n for n in matched if isinstance(n, Operation)]
    in_our_order = sorted(operations, key=lambda n: n.order)
    in_their_order = sorted(operations, key=lambda n: matched[n]._sequence_nr())
    assert in_our_order == in_their_order
    for leaf in set(matched) - set(operations):
        assert matched[leaf]._sequence_nr() == leaf.order


@pytest.mark.parametrize("name", SINGLE)
def test_operations_equal_those_of_pytorch(name, torch, rng):
    both = SINGLE[name]
    a, b = jnp.asarray(rng.uniform(0.1, 1, (2, 2, 3)), jnp.float32)
    leaves = [torch.tensor(np.array(v), requires_grad=True) for v in (a, b)]
    ours, theirs = both if isinstance(both, tuple) else (both, lambda _, *at: both(*at))
    assert_equals_torch(backward_graph(ours, a, b), theirs(torch, *leaves))


def test_examples_equal_the_graphs_of_pytorch(torch):
    a, b, d = (torch.ones(2, requires_grad=k != 1) for k in range(3))
    graph = backward_graph(product, A, B, A, argnums=(0, 2))
    assert_equals_torch(graph, product(a, b, d))
    b = torch.ones(2, requires_grad=True)
    assert_equals_torch(backward_graph(polynomial, A, B), polynomial(a, b))
    x = torch.ones(3, requires_grad=True)
    first, _, last = x.unbind()
    graph = backward_graph(first_and_last, jnp.ones(3))
    assert_equals_torch(graph, first * last)
    params, x, h, c = lstm_arguments()
    layer = torch.nn.Linear(3, 16)
    graph = backward_graph(linear, params["ih"], x, argnums=0)
    assert_equals_torch(graph, layer(torch.ones(2, 3)))
    cell = torch.nn.LSTMCell(3, 4)
    graph = backward_graph(lstm_cell, params, x, h, c, argnums=0)
    assert_equals_torch(graph, cell(torch.ones(2, 3))[0])


def test_stop_gradient_is_a_cut():
    def fn(x, w):
        return 2 * jax.lax.stop_gradient(x * w) * w

    graph = backward_graph(fn, A, B)
    (mul,) = graph.operations
    assert mul.next_functions[0] == (None, 0)
    cut, leaf = (edge.node for edge in mul.edges)
    assert isinstance(cut, Cut) and cut.reason == "stop_gradient"
    assert cut.arguments == ("w", "x")
    assert [node for node, _ in graph.incoming(cut)] == [mul]
    assert leaf.argument == "w"
    assert graph.unreached == {"x": "stop_gradient"}
    expected = jax.grad(lambda *args: fn(*args).sum(), argnums=1)(A, B)
    gradients = graph.record(A, B).backward(jnp.ones(2))
    assert set(gradients) == {"w"}
    np.testing.assert_array_equal(gradients["w"], expected)


def test_what_gets_no_gradient_is_a_cut_or_listed():
    def reasons(fn, *args):
        graph = backward_graph(fn, *args)
        return [(cut.reason, cut.arguments) for cut in graph.cuts], graph.unreached

    assert reasons(lambda x: x * jax.lax.stop_gradient(B), A) == ([], {})
    assert reasons(lambda x: x * jnp.argmax(x), A) == ([], {})
    zero = "Floor has the derivative 0"
    found = reasons(lambda x, y: x * jnp.floor(y), A, B)
    assert found == ([(zero, ("y",))], {"y": zero})
    found = reasons(lambda used, unused: used, A, {"a": B})
    assert found == ([], {"unused['a']": "no result depends on it"})


@pytest.mark.parametrize("truncated", [True, False])
def test_truncation_of_1997_is_visible_at_the_activations(truncated):
    cell = rnncells.LSTM1997Cell(2, 1, truncate_gradient=truncated)
    x = jax.ShapeDtypeStruct((5, 3), jnp.float32)
    carry = jax.eval_shape(cell.initialize_carry, jax.random.key(0), x)
    params = jax.eval_shape(cell.init, jax.random.key(0), carry, x)

    def step(params, carry, x):
        s, y = carry
        return cell.apply(params, (s, y), x)

    graph = backward_graph(step, params, carry, x)
    reached = {leaf.argument for leaf in graph.leaves}
    assert "carry[0]" in reached  # s, the states of the cells
    assert ("carry[1]" in reached) != truncated  # y, the activations
    if truncated:
        (cut,) = graph.cuts
        assert (cut.reason, cut.arguments) == ("stop_gradient", ("carry[1]",))
        (addmm,) = {node for node, _ in graph.incoming(cut)}
        assert addmm.name == "Addmm" and addmm.edges[1].node is cut
        assert "stop_gradient, before carry[1]; reached from" in graph.text()
    else:
        assert graph.cuts == ()


def saved_by_vjp(fn, *args):
    """Bytes of the arrays that the function of `jax.vjp` holds, traced."""

    def residuals(*args):
        return jax.tree.leaves(jax.vjp(fn, *args)[1])

    jaxpr = jax.make_jaxpr(residuals)(*args).jaxpr
    kept = {v for v in jaxpr.outvars if not isinstance(v, jex.Literal)}
    kept -= set(jaxpr.constvars)
    return sum(v.aval.size * v.aval.dtype.itemsize for v in kept)


@each_cell()
def test_every_cell_has_its_parameters_once_and_the_residuals_of_jax(name, rng):
    cell, params, carry, x = random_setting(CELLS[name], rng, 2)

    def step(params, carry, x):
        return cell.apply(params, carry, x)

    graph = backward_graph(step, params, carry, x)
    paths = jax.tree_util.tree_leaves_with_path((params,))
    expected = [f"params{jax.tree_util.keystr(path[1:])}" for path, _ in paths]
    leaves = [leaf.argument for leaf in graph.leaves]
    assert sorted(n for n in leaves if n.startswith("params")) == sorted(expected)
    assert graph.saved_bytes == saved_by_vjp(step, params, carry, x)


@pytest.mark.parametrize(
    "name", by_level(["GRUCell", "ConvLSTMCell-peepholes", "LSTM1997Cell"], 1)
)
def test_gradients_equal_those_of_jax(name, rng, float64):
    cell, params, carry, x = random_setting(CELLS[name], rng, 2)

    def step(params, carry, x):
        return cell.apply(params, carry, x)

    tape = backward_graph(step, params, carry, x).record(params, carry, x)
    cotangent = jax.tree.map(
        lambda y: jnp.asarray(rng.normal(size=y.shape)), tape.result
    )

    @jax.jit
    def by_jax(*args):
        result, vjp = jax.vjp(step, *args)
        return result, vjp(cotangent)

    result, gradients = by_jax(params, carry, x)
    assert_close(tape.result, result, rtol=1e-12)
    check_gradients(tape, tape.backward(cotangent), gradients)


def check_gradients(tape, gradients, expected, names=("params", "carry", "x")):
    for name, tree in zip(names, expected, strict=True):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            label = name + jax.tree_util.keystr(path)
            if label in tape.graph.unreached:
                assert label not in gradients
                np.testing.assert_array_equal(leaf, 0)
            else:
                np.testing.assert_allclose(gradients[label], leaf, 1e-12, 1e-12)


def rows_of_tanh(x):
    def step(carry, x_t):
        carry = jnp.tanh(carry + x_t)
        return carry, carry * jnp.argmax(x_t)

    return jax.lax.scan(step, jnp.zeros(3), x)[1]


@jax.custom_vjp
def tripled(x):
    return 3 * x


# The rule is wrong on purpose: the graph must follow the rule, not the values.
tripled.defvjp(lambda x: (3 * x, x), lambda x, g: (g * x,))

FUNCTIONS = {
    "scan": (rows_of_tanh, ["Scan"]),
    "custom rule": (tripled, ["Tripled"]),
    "relu": (nn.relu, ["Relu"]),
    "cond": (lambda x: jax.lax.cond(True, jnp.sin, jnp.cos, x), ["Cond"]),
    "checkpoint": (jax.checkpoint(lambda x: jnp.sin(jnp.sin(x))), ["Checkpoint"]),
    "fori_loop": (
        lambda x: jax.lax.fori_loop(0, 3, lambda k, c: c * jnp.cos(c), x),
        ["Scan"],
    ),
    "jit": (jax.jit(lambda x: jax.jit(jnp.sin)(jnp.exp(x))), ["Sin", "Exp"]),
    "softmax": (nn.softmax, ["Div", "Unsqueeze", "Sum", "Exp", "Sub"]),
    "complex": (lambda x: jnp.abs(x * (1 + 2j)) ** 2, ["Pow", "Abs", "Mul", "ToCopy"]),
    "integers": (lambda x: x * jnp.argmax(x), ["Mul"]),
    "set": (lambda x: x.at[0].set(1.0), ["IndexPut"]),
    "vmap": (jax.vmap(lambda x: jnp.outer(x, x)), ["Mul", "Unsqueeze", "Unsqueeze"]),
}


@pytest.mark.parametrize("name", by_level(FUNCTIONS, 4))
def test_calls_are_single_nodes_with_the_gradients_of_jax(name, rng):
    fn, names = FUNCTIONS[name]
    x = jnp.asarray(rng.standard_normal((2, 3)), jnp.float32)
    graph = backward_graph(fn, x)
    assert [node.name for node in graph.operations] == names
    result, vjp = jax.vjp(fn, x)
    (gradient,) = graph.record(x).backward(jnp.ones_like(result)).values()
    np.testing.assert_allclose(gradient, vjp(jnp.ones_like(result))[0], rtol=1e-6)


def test_calls_have_graphs_of_what_they_call():
    (scan,) = backward_graph(rows_of_tanh, jnp.ones((2, 3))).operations
    (step,) = scan.inner
    # The first carry is a constant; after one step it depends on the inputs.
    assert {leaf.argument for leaf in step.leaves} == {"carry[0]", "input[0]"}
    assert [edge.operand for edge in step.results] == ["carry[0]", "output[0]"]
    assert [n.name for n in step.operations] == ["Mul", "Tanh", "Add"]
    assert (
        "  | Backward graph of step:"
        in backward_graph(rows_of_tanh, jnp.ones((2, 3))).text()
    )
    with pytest.raises(ValueError, match="the graph inside a node, `step`"):
        step.record(A)

    def either(x, y):
        return jax.lax.cond(x.sum() > 0, lambda x, y: x * y, lambda x, y: x, x, y)

    (cond,) = backward_graph(either, A, B).operations
    second, first = (graph.results[0].node for graph in cond.inner)
    assert (first.name, second.argument) == ("Mul", "x")


@pytest.mark.parametrize("implementation", by_level(["auto", "scan"], ["auto"]))
def test_layers_and_bound_layers(implementation, rng, float64):
    rnn = rnncells.RNN(
        rnncells.SimpleCell(4, param_dtype=float), implementation=implementation
    )
    x = jnp.asarray(rng.standard_normal((2, 5, 3)))
    variables = random_params(rng, rnn, x)
    lengths = jnp.array([5, 2])

    def loss(params, x, lengths):
        return jnp.sum(rnn.apply(params, x, seq_lengths=lengths) ** 2)

    graph = backward_graph(loss, variables, x, lengths)
    assert {n.name for n in graph.operations} & {"Scan", "Run"}
    tape = graph.record(variables, x, lengths)
    expected = jax.jit(jax.grad(loss, argnums=(0, 1)))(variables, x, lengths)
    check_gradients(tape, tape.backward(), expected, ("params", "x"))

    graph = backward_graph(rnn.bind(variables), x)
    sum_of = lambda params: jnp.sum(rnn.apply({"params": params}, x))  # noqa: E731
    expected = jax.jit(jax.grad(sum_of))(variables["params"])
    tape = graph.record(x)
    gradients = tape.backward(jnp.ones((2, 5, 4)))
    check_gradients(tape, gradients, (expected,), ("params",))


def test_methods_of_bound_modules():
    cell = rnncells.LSTMCell(4)
    x = jnp.ones((2, 3))
    carry = cell.initialize_carry(jax.random.key(0), x)
    bound = cell.bind(cell.init(jax.random.key(0), carry, x))
    graph = backward_graph(bound.project, x, argnums=())
    names = [f"params['{name}']['kernel']" for name in ("ii", "if", "ig", "io")]
    assert [leaf.argument for leaf in graph.leaves] == names


def test_loops_of_unknown_length_are_drawn_but_not_run():
    def fn(x):
        return jax.lax.while_loop(lambda x: x < 9, lambda x: 2 * x, x)

    graph = backward_graph(fn, jnp.float32(1))
    (node,) = graph.operations
    assert node.name == "While" and "no reverse mode" in node.words
    with pytest.raises(NotImplementedError, match="`while` loops, got While 0"):
        graph.record(jnp.float32(1))


# What the equations of elementwise operations are made of.
MATHEMATICS = {name: getattr(np, name) for name in ("exp", "log", "sin", "cos", "sqrt")}
MATHEMATICS |= {"pi": np.pi, "sign": np.sign}
ELEMENTWISE = [
    *(jnp.exp, jnp.log, jnp.log1p, jnp.expm1, jnp.sin, jnp.cos, jnp.tanh, nn.sigmoid),
    *(jnp.sqrt, jax.lax.rsqrt, jnp.square, jnp.negative, jnp.abs, jax.lax.erf),
    *(lambda x: x**3, lambda x: x**2.5, jnp.reciprocal, lambda x: 3 - x),
    *(jnp.add, jnp.subtract, jnp.multiply, jnp.divide, jnp.power),
]


@pytest.mark.parametrize("number", range(len(ELEMENTWISE)))
def test_equations_are_the_derivatives(number, float64):
    """The text of each equation, evaluated as Python."""
    fn = ELEMENTWISE[number]
    x, y, dz = 0.7, 0.4, 1.3
    args = (x, y) if fn in ELEMENTWISE[-5:] else (x,)
    z, vjp = jax.vjp(fn, *args)
    (node,) = backward_graph(fn, *args).operations
    terms = dict(term.split(" = ") for term in node.backward.split("; "))
    values = MATHEMATICS | {"x": x, "y": y, "z": float(z), "dz": dz}
    found = [eval(t.replace("^", "**"), {}, values) for t in terms.values()]
    np.testing.assert_allclose(found, vjp(dz), rtol=1e-12)


def test_saved_values_are_formulas_with_their_bytes():
    graph = backward_graph(lambda x, y: jnp.exp(x) * jnp.sin(y), A, B)
    saved = {node.label: [str(v) for v in node.saved] for node in graph.operations}
    assert saved == {
        "Mul 2": ["x  float32[2]  8 bytes", "y  float32[2]  8 bytes"],
        "Sin 1": ["cos(x)  float32[2]  8 bytes"],
        "Exp 0": ["z  float32[2]  8 bytes"],
    }
    # The result of Exp is an operand of Mul: one array.
    assert graph.saved_bytes == 24


def test_only_values_that_are_read_are_saved():
    graph = backward_graph(lambda x, y: x * y, A, B, argnums=0)
    (value,) = graph.saved
    assert (value.formula, value.argument, value.nbytes) == ("y", "y", 8)


def test_text_has_equations_saved_values_edges_and_leaves():
    graph = backward_graph(polynomial, A, B)
    text = graph.text()
    assert text == str(graph)
    assert text.startswith("Backward graph of polynomial: 4 operations, 2 leaves, 16")
    for line in (
        "result <- Sub 3, output 0  float32[2]",
        "Pow 2: z = x^2  on cpu:0",
        "  backward: dx = dz; dy = -dz",
        "  dy -> Pow 2, output 0  float32[2]",
        "  saves 2 * x  float32[2]  8 bytes",
        "  a  float32[2] on cpu:0  from Pow 0",
    ):
        assert line in text.splitlines()


def strange(params, x):
    return jnp.exp(params['<"&\\>'] * x)


def test_dot_and_mermaid_have_all_nodes_and_edges():
    graph = backward_graph(strange, {'<"&\\>': A}, B)
    edges = sum(edge.node is not None for node in graph.nodes for edge in node.edges)
    dot, mermaid = graph.dot(), graph.mermaid()
    assert dot.startswith('digraph "strange" {') and dot.endswith("}\n")
    assert r"params['<\"&\\\\>']" in dot
    assert mermaid.startswith("flowchart TD\n")
    strings = re.compile(r'"(?:[^"\\]|\\.)*"')
    for text, node, edge in [
        (dot, r"^  (n\d+) \[shape=\w+, label=\"\"\];$", r"^  (n\d+|r0) -> (n\d+) \["),
        (mermaid, r"^  (n\d+)(?:\[|\(\[)\"\"", r"^  (n\d+|r0) --> *\|\"\"\| (n\d+)$"),
    ]:
        bare = strings.sub('""', text)
        nodes = re.findall(node, bare, re.MULTILINE)
        assert nodes == [f"n{k}" for k, _ in enumerate(graph.nodes)]
        found = re.findall(edge.replace("--> *", "-->"), bare, re.MULTILINE)
        assert len(found) == edges + 1
        assert {end for _, end in found} <= set(nodes)
    said = strings.findall(mermaid)[1].replace("<br/>", "")
    assert "#34;" in mermaid and "<" not in said
    assert {"params['<\"&\\\\>']", "dx = dz * y", "0: float32[2]"} <= set(labels(graph))
    graph = backward_graph(lambda x, y: x * jax.lax.stop_gradient(y), A, B)
    assert "style=dashed" in graph.dot() and "-.->" in graph.mermaid()


def labels(graph):
    """The lines of all labels of a graph for Graphviz."""
    strings = re.findall(r'label="((?:[^"\\]|\\.)*)"', graph.dot())
    lines = [line for text in strings for line in text.split(r"\n")]
    return [re.sub(r"\\(.)", r"\1", line) for line in lines]


def test_notebooks_show_a_picture(monkeypatch):
    graph = backward_graph(polynomial, A, B)
    drawn_svg = subprocess.CompletedProcess([], 0, "<svg/>")
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: drawn_svg)
    assert graph._repr_mimebundle_()["image/svg+xml"] == graph.svg() == "<svg/>"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    markdown = graph._repr_mimebundle_()["text/markdown"]
    assert markdown == f"```mermaid\n{graph.mermaid()}```"
    with pytest.raises(RuntimeError, match="needs the program `dot`"):
        graph.svg()


def record(*args, **options):
    return backward_graph(polynomial, A, B, **options).record(*args)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: record(A, B).backward(), ValueError, "one real scalar, got a result"),
        (
            lambda: record(A, B).backward(jnp.ones(3)),
            ValueError,
            r"\[2\], got float32\[",
        ),
        (lambda: record(A, {"b": B}), ValueError, r"got \(float32\[2\], \{b: float32"),
        (lambda: backward_graph(jnp.multiply, A, 2, argnums=1), TypeError, "'int32'"),
        (lambda: record(argnums=2), ValueError, r"must be in \[0, 2\), .* got 2"),
    ],
)
def test_errors_say_what_was_given(call, error, message):
    with pytest.raises(error, match=message):
        call()


# The functions of the section "Complex gradients".
def distance(z):
    return abs(z - (1 + 1j)) ** 2


def square(z):
    return z**2


def test_complex_gradients_are_the_conjugates_of_pytorchs(torch):
    value, grad_output = 3 + 4j, 1 + 2j
    z = torch.tensor(value, requires_grad=True)
    distance(z).backward()
    assert z.grad.item() == 4 + 6j
    graph = backward_graph(distance, value)
    gradient = graph.record(value).backward()["z"]
    np.testing.assert_allclose(gradient, np.conj(z.grad.item()), rtol=1e-6)

    z = torch.tensor(value, requires_grad=True)
    square(z).backward(torch.tensor(grad_output))
    assert z.grad.item() == grad_output * np.conj(2 * value)
    tape = backward_graph(square, value).record(value)
    gradient = tape.backward(jnp.complex64(np.conj(grad_output)))["z"]
    np.testing.assert_allclose(gradient, np.conj(z.grad.item()), rtol=1e-6)


def test_equations_of_complex_parts_are_those_of_jax():
    z, dz = jnp.complex64(3 + 4j), 1.5
    for fn, expected in [(jnp.imag, -1j * dz), (jnp.real, dz)]:
        assert backward_graph(fn, z).record(z).backward(jnp.float32(dz)) == {
            "val": expected
        }
    graph = backward_graph(jnp.conj, z)
    assert graph.record(z).backward(jnp.complex64(1 + 2j)) == {"x": 1 - 2j}


def without_saved(lines):
    """Labels without those that depend on the version of JAX."""
    return sorted(line for line in lines if not line.startswith("saves "))


def test_page_runs_and_has_the_pictures_of_its_examples():
    docs = Path(__file__).resolve().parent.parent / "docs"
    graphs = runpy.run_path(str(docs / "backward_graph.py"))["pictures"]()
    assert {*(docs / "backward-graph").iterdir()} == {*graphs}
    for path, graph in graphs.items():
        root = ElementTree.fromstring(path.read_text())
        texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
        assert without_saved(texts) == without_saved(labels(graph))

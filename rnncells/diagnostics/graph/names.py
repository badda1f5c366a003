"""Names of operations: PyTorch's, for the primitives of JAX."""

import re
from typing import Any

# Primitives of JAX, and the name of the node without PyTorch's ending `Backward0`.
PRIMITIVES = {
    "abs": "Abs",
    "acos": "Acos",
    "acosh": "Acosh",
    "add": "Add",
    "add_any": "Add",
    "asin": "Asin",
    "asinh": "Asinh",
    "atan": "Atan",
    "atan2": "Atan2",
    "atanh": "Atanh",
    "broadcast_in_dim": "Expand",
    "cholesky": "LinalgCholeskyEx",
    "clamp": "Clamp",
    "complex": "Complex",
    "concatenate": "Cat",
    "conj": "Conj",
    "conv_general_dilated": "Convolution",
    "convert_element_type": "ToCopy",
    "copy": "Clone",
    "copy_p": "Clone",
    "cos": "Cos",
    "cosh": "Cosh",
    "cumlogsumexp": "Logcumsumexp",
    "cummax": "Cummax",
    "cummin": "Cummin",
    "cumprod": "Cumprod",
    "cumsum": "Cumsum",
    "div": "Div",
    "dot_general": "Mm",
    "dynamic_slice": "Slice",
    "dynamic_update_slice": "SliceScatter",
    "erf": "Erf",
    "erf_inv": "Erfinv",
    "erfc": "Erfc",
    "exp": "Exp",
    "exp2": "Exp2",
    "expm1": "Expm1",
    "gather": "Index",
    "imag": "Imag",
    "integer_pow": "Pow",
    "lgamma": "Lgamma",
    "log": "Log",
    "log1p": "Log1P",
    "logistic": "Sigmoid",
    "max": "Maximum",
    "min": "Minimum",
    "mul": "Mul",
    "neg": "Neg",
    "pad": "ConstantPadNd",
    "pow": "Pow",
    "real": "Real",
    "reduce_max": "Amax",
    "reduce_min": "Amin",
    "reduce_prod": "Prod",
    "reduce_sum": "Sum",
    "remat2": "Checkpoint",
    "checkpoint": "Checkpoint",
    "reshape": "View",
    "rev": "Flip",
    "rsqrt": "Rsqrt",
    "scatter": "IndexPut",
    "scatter_add": "IndexAdd",
    "select_n": "Where",
    "sin": "Sin",
    "sinh": "Sinh",
    "slice": "Slice",
    "sort": "Sort",
    "split": "Split",
    "sqrt": "Sqrt",
    "square": "Pow",
    "squeeze": "Squeeze",
    "stack": "Stack",
    "sub": "Sub",
    "tan": "Tan",
    "tanh": "Tanh",
    "transpose": "Permute",
    "triangular_solve": "TriangularSolve",
    "unstack": "Unbind",
    "while": "While",
}
# Functions of JAX that are one operation in PyTorch: the names under which JAX compiles
# them, and the names of the nodes.
FUNCTIONS = {
    "_std": "Std",
    "_var": "Var",
    "celu": "Celu",
    "clip": "Clamp",
    "elu": "Elu",
    "hard_tanh": "Hardtanh",
    "leaky_relu": "LeakyRelu",
    "log_softmax": "LogSoftmax",
    "silu": "Silu",
}
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


def of_equation(equation: Any) -> str:
    """Returns the name of the node of an equation."""
    primitive = equation.primitive.name
    special = _SPECIAL.get(primitive)
    if special is not None:
        return special(equation)
    return PRIMITIVES.get(primitive) or camel(primitive)


def camel(name: str) -> str:
    """Returns a name of a function in the style of classes.

    >>> camel("log_softmax"), camel("_logaddexp"), camel("myF")
    ('LogSoftmax', 'Logaddexp', 'MyF')
    """
    parts = re.split(r"[\W_]+", name)
    return "".join(part[0].upper() + part[1:] for part in parts if part) or "Function"


def matches_torch(name: str, torch_name: str) -> bool:
    """Says whether a node is the one of PyTorch that has the name `torch_name`.

    >>> matches_torch("Mul", "MulBackward0")
    True
    >>> matches_torch("Accumulate", "torch::autograd::AccumulateGrad")
    True
    >>> matches_torch("Mul", "DivBackward0")
    False
    """
    short = re.sub(r"Backward\d*$", "", torch_name.split("::")[-1])
    return short in TORCH.get(name, (name,))


def _product(equation):
    """Products are named by the number of axes, as in PyTorch."""
    (_, (batch, _)) = equation.params["dimension_numbers"]
    axes = tuple(len(v.aval.shape) for v in equation.invars)
    if batch:
        return "Bmm"
    return {(1, 1): "Dot", (2, 1): "Mv"}.get(axes, "Mm")


def _transpose(equation):
    return "T" if equation.params["permutation"] == (1, 0) else "Permute"


def _power(equation):
    return "Reciprocal" if equation.params["y"] == -1 else "Pow"


def _broadcast(equation):
    (operand, *_), (result,) = equation.invars, equation.outvars
    return "Unsqueeze" if operand.aval.size == result.aval.size else "Expand"


def _reshape(equation):
    (operand, *_), (result,) = equation.invars, equation.outvars
    new = [n for n in result.aval.shape if n != 1]
    old = [n for n in operand.aval.shape if n != 1]
    if new != old or len(result.aval.shape) == len(operand.aval.shape):
        return "View"
    longer = len(result.aval.shape) > len(operand.aval.shape)
    return "Unsqueeze" if longer else "Squeeze"


def _function(equation):
    name = equation.params.get("name")
    if name is None:
        inner = equation.params["call_jaxpr"]
        info = getattr(getattr(inner, "jaxpr", inner), "debug_info", None)
        name = getattr(info, "func_name", "").split(" ")[0]
    return FUNCTIONS.get(name) or camel(name)


_SPECIAL = {
    "dot_general": _product,
    "transpose": _transpose,
    "integer_pow": _power,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "jit": _function,
    "custom_jvp_call": _function,
    "custom_vjp_call": _function,
}

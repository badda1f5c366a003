"""Names of operations, PyTorch's, with their equations in symbols and words.

In all equations, z is the result, x and y are the operands, and dx is the gradient of
the loss with respect to x. Gradients are JAX's: nothing is conjugated.
"""

import re
from typing import Any, NamedTuple

# Names of nodes, without PyTorch's ending `Backward0`. Others are `camel` of the name
# of the primitive or the function.
NAMES = {
    "add_any": "Add",
    "cholesky": "LinalgCholeskyEx",
    "clip": "Clamp",
    "concatenate": "Cat",
    "conv_general_dilated": "Convolution",
    "convert_element_type": "ToCopy",
    "copy": "Clone",
    "copy_p": "Clone",
    "cumlogsumexp": "Logcumsumexp",
    "dynamic_slice": "Slice",
    "dynamic_update_slice": "SliceScatter",
    "erf_inv": "Erfinv",
    "gather": "Index",
    "hard_tanh": "Hardtanh",
    "log1p": "Log1P",
    "logistic": "Sigmoid",
    "max": "Maximum",
    "min": "Minimum",
    "pad": "ConstantPadNd",
    "reduce_max": "Amax",
    "reduce_min": "Amin",
    "reduce_prod": "Prod",
    "reduce_sum": "Sum",
    "remat2": "Checkpoint",
    "rev": "Flip",
    "scatter": "IndexPut",
    "scatter_add": "IndexAdd",
    "select_n": "Where",
    "square": "Pow",
    "unstack": "Unbind",
}
# Names under which JAX compiles functions that are one operation in PyTorch.
FUNCTIONS = "_std _var celu clip elu hard_tanh leaky_relu log_softmax silu".split()


def name_of(equation: Any) -> str:
    """Returns the name of the node of an equation."""
    primitive, params = equation.primitive.name, equation.params
    shapes = [v.aval.shape for v in equation.invars]
    match primitive:
        case "dot_general":
            # Products are named by the number of axes, as in PyTorch.
            (_, (batch, _)) = params["dimension_numbers"]
            first, second = map(len, shapes)
            products = {(1, 1): "Dot", (2, 1): "Mv"}
            return "Bmm" if batch else products.get((first, second), "Mm")
        case "transpose":
            return "T" if params["permutation"] == (1, 0) else "Permute"
        case "integer_pow":
            return "Reciprocal" if params["y"] == -1 else "Pow"
        case "broadcast_in_dim":
            is_larger = equation.outvars[0].aval.size > equation.invars[0].aval.size
            return "Expand" if is_larger else "Unsqueeze"
        case "reshape":
            old, new = shapes[0], equation.outvars[0].aval.shape
            is_same = [n for n in old if n != 1] == [n for n in new if n != 1]
            if not is_same or len(old) == len(new):
                return "View"
            return "Unsqueeze" if len(new) > len(old) else "Squeeze"
        case "jit" | "custom_jvp_call" | "custom_vjp_call":
            primitive = params.get("name")
            if primitive is None:
                inner = params["call_jaxpr"]
                info = getattr(getattr(inner, "jaxpr", inner), "debug_info", None)
                primitive = getattr(info, "func_name", "").split(" ")[0]
    return NAMES.get(primitive) or camel(primitive)


def camel(name: str) -> str:
    """Returns a name of a function in the style of classes.

    >>> camel("log_softmax"), camel("_logaddexp"), camel("myF")
    ('LogSoftmax', 'Logaddexp', 'MyF')
    """
    parts = re.split(r"[\W_]+", name)
    return "".join(part[0].upper() + part[1:] for part in parts if part) or "Function"


class Wording(NamedTuple):
    """The equations of an operation and its backward pass, and the latter in words."""

    forward: str
    backward: str
    words: str


# Letters of operands where they are not x, or x and y.
LETTERS = {
    "Addmm": ("b", "x", "W"),
    "Convolution": ("x", "W"),
    "Index": ("x", "i"),
    "Mm": ("x", "W"),
    "Mv": ("W", "x"),
    "Where": ("c", "x", "y"),
}

# Of each operation: equation | equation of the backward pass | the latter in words.
WORDINGS = {
    "Abs": "z = |x| | dx = dz * sign(x) | The gradient times the sign.",
    "Add": "z = x + y | dx = dz; dy = dz | Both terms get the gradient.",
    "Addmm": "z = x W + b | db = sum of dz over rows; dx = dz W^T; dW = x^T dz | "
    "The bias gets the sum over rows, each factor the product with the other.",
    "Amax": "z = max(x) | dx = dz where x = z, else 0 | "
    "The largest elements share the gradient.",
    "Amin": "z = min(x) | dx = dz where x = z, else 0 | "
    "The smallest elements share the gradient.",
    "Bmm": "z = x y, one product for each index of the batch | "
    "dx = dz y^T; dy = x^T dz | "
    "Each factor gets the product with the other, transposed.",
    "Cat": "z = [x1, x2, ...] | dx1, dx2, ... = parts of dz | "
    "Each array gets its part of the gradient.",
    "Checkpoint": "z = f(x), without saved values | "
    "f(x) is computed again; dx = dz f'(x) | "
    "The function runs again, and its backward pass follows.",
    "Clamp": "z = clamp(x) | dx = dz where x is in the range, else 0 | "
    "The gradient passes where nothing was clamped.",
    "Clone": "z = x | dx = dz | The gradient passes unchanged.",
    "Complex": "z = x + i y | dx = Re(dz); dy = -Im(dz) | "
    "The real part goes to x, the negative imaginary part to y.",
    "Cond": "z = branch(x) | dx = dz branch'(x) | "
    "The backward pass of the branch that was taken.",
    "Conj": "z = conj(x) | dx = conj(dz) | The gradient is conjugated.",
    "ConstantPadNd": "z = x between constants | dx = part of dz | "
    "The gradient of the padding is dropped.",
    "Convolution": "z = x * W (convolution) | "
    "dx = dz convolved with the flipped W; dW = x correlated with dz | "
    "Each operand gets the gradient, convolved with the other one.",
    "Cos": "z = cos(x) | dx = -dz * sin(x) | The gradient times the negative sine.",
    "Cumsum": "z = cumulative sum of x | dx = cumulative sum of dz from the end | "
    "Each element gets the gradients of all later sums.",
    "Div": "z = x / y | dx = dz / y; dy = -dz * x / y^2 | "
    "The numerator gets the gradient divided by y, the denominator minus z times that.",
    "Dot": "z = x . y | dx = dz y; dy = dz x | "
    "Each vector gets the other one, times the gradient.",
    "Erf": "z = erf(x) | dx = dz * 2 / sqrt(pi) * exp(-x^2) | "
    "The gradient times the derivative of erf.",
    "Exp": "z = exp(x) | dx = dz * z | The gradient times the result.",
    "Expand": "z = x, repeated | dx = sum of dz over the repeated axes | "
    "The gradients of all copies are added up.",
    "Expm1": "z = exp(x) - 1 | dx = dz * (z + 1) | The gradient times the exponential.",
    "Flip": "z = x, reversed | dx = dz, reversed | The gradient is reversed back.",
    "Imag": "z = Im(x) | dx = -i dz | The gradient times -i.",
    "Index": "z = x[i] | dx = 0, with dz added at i | "
    "The gradient is added at the indices that were read.",
    "Log": "z = log(x) | dx = dz / x | The gradient divided by the operand.",
    "Log1P": "z = log(1 + x) | dx = dz / (1 + x) | The gradient divided by 1 + x.",
    "LogSoftmax": "z = x - log(sum of exp(x)) | dx = dz - exp(z) * sum of dz | "
    "The gradient minus the probabilities times its sum.",
    "Maximum": "z = max(x, y) | "
    "dx = dz where x > y; dy = dz where y > x; half each where x = y | "
    "The larger operand gets the gradient; equal ones share it.",
    "Mean": "z = mean of x | dx = dz / n | "
    "Each element gets the gradient divided by n.",
    "Minimum": "z = min(x, y) | "
    "dx = dz where x < y; dy = dz where y < x; half each where x = y | "
    "The smaller operand gets the gradient; equal ones share it.",
    "Mm": "z = x W | dx = dz W^T; dW = x^T dz | "
    "Each factor gets the product with the other, transposed.",
    "Mul": "z = x * y | dx = dz * y; dy = dz * x | "
    "Each factor gets the gradient times the other.",
    "Mv": "z = W x | dW = dz x^T; dx = W^T dz | "
    "The matrix gets the outer product with x, the vector the product with W^T.",
    "Neg": "z = -x | dx = -dz | The gradient changes its sign.",
    "Permute": "z = x, with permuted axes | "
    "dx = dz, with the axes in their old order | "
    "The axes of the gradient are permuted back.",
    "Real": "z = Re(x) | dx = dz | The gradient becomes complex.",
    "Reciprocal": "z = 1 / x | dx = -dz * z^2 | "
    "The gradient times minus the squared result.",
    "Relu": "z = max(x, 0) | dx = dz where x > 0, else 0 | "
    "The gradient passes where the operand is positive.",
    "Rsqrt": "z = 1 / sqrt(x) | dx = -dz / 2 * z / x | "
    "The gradient times minus half of the result, divided by x.",
    "Rsub": "z = c - x | dx = -dz | The gradient changes its sign.",
    "Scan": "carry, z_t = step(carry, x_t), for each t | "
    "the backward pass of the step, from the last t to the first | "
    "Gradients of the carry flow back in time; those of constants are added up.",
    "Select": "z = x[i] | dx = 0, with dz at i | "
    "The gradient is put back to its place.",
    "Sigmoid": "z = sigmoid(x) | dx = dz * z * (1 - z) | "
    "The gradient times the result times one minus it.",
    "Silu": "z = x * sigmoid(x) | dx = dz * (s + z * (1 - s)) with s = sigmoid(x) | "
    "The gradient times the derivative of the function.",
    "Sin": "z = sin(x) | dx = dz * cos(x) | The gradient times the cosine.",
    "Slice": "z = part of x | dx = 0, with dz in that part | "
    "The gradient is put back to its place.",
    "Split": "z0, z1, ... = parts of x | dx = [dz0, dz1, ...] | "
    "The gradients of the parts are joined; a part that is not used counts as 0.",
    "Sqrt": "z = sqrt(x) | dx = dz / (2 * z) | "
    "The gradient divided by twice the result.",
    "Squeeze": "z = x, fewer axes | dx = dz, reshaped | Axes are added.",
    "Stack": "z = [x1, x2, ...] on a new axis | dx1, dx2, ... = parts of dz | "
    "Each array gets its part of the gradient.",
    "Sub": "z = x - y | dx = dz; dy = -dz | "
    "The second operand gets the negative gradient.",
    "Sum": "z = sum of x | dx = dz, repeated | Each element gets the gradient.",
    "T": "z = x^T | dx = dz^T | The gradient is transposed.",
    "Tanh": "z = tanh(x) | dx = dz * (1 - z^2) | "
    "The gradient times one minus the squared result.",
    "ToCopy": "z = x in another dtype | dx = dz in the dtype of x | "
    "The gradient is converted back.",
    "Unbind": "z0, z1, ... = x[0], x[1], ... | dx = [dz0, dz1, ...] | "
    "The gradients of the parts are stacked; a part that is not used counts as 0.",
    "Unsqueeze": "z = x, more axes | dx = dz, reshaped | Axes are removed.",
    "View": "z = x, reshaped | dx = dz, reshaped | The shape is restored.",
    "Where": "z = x where c, else y | "
    "dx = dz where c, else 0; dy = 0 where c, else dz | "
    "Each element of the gradient goes where its value came from.",
    "While": "z = body(... body(x)) | not defined | "
    "JAX has no reverse mode for loops of unknown length; `jax.lax.scan` has.",
}


def wording(name: str, exponent: Any, letters: tuple[str, ...]) -> Wording:
    """Returns the equations of the operation `name`; a power may have an `exponent`."""
    if name == "Pow":
        return _power_wording(exponent)
    if name in WORDINGS:
        return Wording(*WORDINGS[name].split(" | "))
    return Wording(
        f"z = {name}({', '.join(letters)})",
        f"dx = dz * derivative of {name}",
        "JAX differentiates the function as a whole, by its own rule if it has one.",
    )


def operand_letters(name: str, count: int) -> tuple[str, ...]:
    """Returns the letters of an operation's operands."""
    letters = LETTERS.get(name, ("x",) if count == 1 else ("x", "y"))
    if len(letters) == count and name not in ("Cat", "Stack"):
        return letters
    return tuple(f"x{k + 1}" for k in range(count))


def _power_wording(exponent: float | None) -> Wording:
    if exponent is None:
        return Wording(
            "z = x^y",
            "dx = dz * y * x^(y - 1); dy = dz * z * log(x)",
            "The base gets the gradient times the exponent times the base to the power "
            "of one less; the exponent gets it times the result times log(x).",
        )
    less = exponent - 1
    power = "x" if less == 1 else f"x^{less:g}"
    return Wording(
        f"z = x^{exponent:g}",
        f"dx = dz * {exponent:g} * {power}",
        "The gradient times the exponent times the base to the power of one less.",
    )

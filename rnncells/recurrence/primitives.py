"""Names of JAX's primitives, by what they do."""

# Calls that are replaced by what they call. Functions with derivatives of their own
# stay whole.
INLINED = ("jit", "remat2", "call", "closed_call", "eval_jaxpr")
CUSTOM = ("custom_jvp_call", "custom_vjp_call")
PRODUCTS = ("dot_general", "conv_general_dilated")
SUMS = ("add", "add_any")
COMMUTATIVE = ("add", "mul", "max", "min")
# Elementwise functions of two operands, which NumPy's functions broadcast.
BINARY = (*COMMUTATIVE, "sub", "div", "pow", "atan2")
# Functions of one element of each operand.
ELEMENTWISE = frozenset(
    "abs acos acosh add add_any asin asinh atan atan2 atanh cbrt ceil clamp complex "
    "conj convert_element_type copy copy_p cos cosh digamma div erf erf_inv erfc exp "
    "exp2 expm1 floor imag integer_pow is_finite lgamma log log1p logistic max min mul "
    "name neg nextafter optimization_barrier pow real reduce_precision rem round rsqrt "
    "select_n sign sin sinh sqrt square sub tan tanh".split()
)
# Positive linear functions of each operand.
LINEAR = frozenset(
    "broadcast_in_dim concatenate conv_general_dilated cumsum dot_general expand_dims "
    "pad reduce_sum reduce_window_sum reshape rev slice split squeeze tile "
    "transpose".split()
)
# Linear functions of one operand.
LINEAR_MAPS = frozenset(
    "reduce_sum reshape squeeze broadcast_in_dim transpose neg".split()
)
REDUCTIONS = ("reduce_max", "reduce_min", "reduce_prod")

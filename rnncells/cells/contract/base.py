"""The base class of recurrent cells.

A cell is a projection and a recurrence; in addition, a call keeps the carry's dtypes:

    cell(carry, inputs) == cell.recur(carry, cell.project(inputs))
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree, PRNGKey
from flax.errors import CallCompactUnboundModuleError
from flax.typing import Initializer
from jax import Array

from rnncells._checks import ChecksArguments, check_count, check_key
from rnncells.cells.contract import checks
from rnncells.cells.contract.carry import (
    Carry,
    InputSpec,
    ShapeTree,
    carry_dtype,
    cast_like,
    check_returned,
    has_form,
    input_structs,
    is_shape,
)
from rnncells.cells.contract.parameters import DenseParams, of_gate
from rnncells.flax_internals import (
    after_setup,
    run_setup,
    run_setup_for_params,
    with_deterministic,
    with_width_of,
)
from rnncells.initializers import PerGateInit
from rnncells.recurrence.engine.affine import Affine, block_affine, side_by_side
from rnncells.recurrence.pytrees import StructTree


class RNNCellBase(ChecksArguments, nn.RNNCellBase):
    """Base of all cells: `carry, output = cell(carry, inputs)`.

    A subclass has the field `features` (None takes the width of the carry) and, if it
    uses them, the fields `dtype`, `param_dtype` and `carry_init`. It defines
    `num_feature_dims`, `carry_shape`, `setup`, `project` and `recur`:

    >>> import flax.linen as nn, jax, jax.numpy as jnp, rnncells
    >>> class LeakyCell(rnncells.RNNCellBase):
    ...     features: int
    ...     num_feature_dims = 1
    ...     def carry_shape(self, input_shape):
    ...         return (self.features,)
    ...     def setup(self):
    ...         self.gates("i")
    ...         self.gates("h", kernel_init=rnncells.initializers.orthogonal())
    ...     def project(self, inputs):
    ...         return self.affine(inputs, "i")
    ...     def recur(self, carry, projected):
    ...         a = self.affine(carry, "h") + projected
    ...         carry = 0.9 * carry + 0.1 * nn.tanh(a)
    ...         return carry, carry
    >>> rnn = rnncells.RNN(LeakyCell(features=4))
    >>> outputs, _ = rnn.init_with_output(jax.random.key(0), jnp.ones((2, 5, 3)))
    >>> outputs.shape
    (2, 5, 4)

    Dtypes. `initialize_carry` returns a carry in `param_dtype`, or a complex carry if
    the input is complex. Each step returns the carry in the dtype that it was given, so
    that every cell can be scanned. One exception: a real carry becomes complex with
    complex inputs. The computation runs in `dtype`; if `dtype` is None, in the promoted
    dtype of inputs and parameters. An output that depends on the carry directly has the
    wider of the two dtypes, as in flax.linen. The outputs of SimpleCell and
    ProjectedLSTMCell are products and have the dtype of the computation.
    """

    @property
    def num_feature_dims(self) -> int:
        """Number of feature axes, the last axes of the input."""
        if type(self).num_feature_axes is RNNCellBase.num_feature_axes:
            raise NotImplementedError(
                f"{type(self).__name__} must define `num_feature_dims`."
            )
        return self.num_feature_axes

    @property
    def num_feature_axes(self) -> int:
        """`num_feature_dims` under its name in flax.linen."""
        return self.num_feature_dims

    def setup(self) -> None:
        """Declares the gates and other submodules."""

    @nn.nowrap
    def carry_shape(self, input_shape: tuple[int, ...]) -> ShapeTree:
        """Returns the shapes of the carry without batch axes: a pytree of tuples.

        This method must read only fields, because it is also called outside of `apply`.
        To fix the dtype of a part, return a `jax.ShapeDtypeStruct` instead of a tuple;
        integer parts start at 0.

        Args:
          input_shape: sizes of the last `num_feature_dims` axes of the input.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `carry_shape`.")

    @nn.nowrap
    def project(self, inputs: ArrayTree) -> ArrayTree:
        """Returns the part of a step that depends on the inputs only.

        Args:
          inputs: `(*batch, *features)`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `project`.")

    @nn.nowrap
    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, ArrayTree]:
        """Returns `(new_carry, output)` of one step, from the projected inputs."""
        raise NotImplementedError(f"{type(self).__name__} must define `recur`.")

    @nn.nowrap
    def gates(
        self,
        *names: str,
        features: int | None = None,
        kernel_init: Initializer = nn.initializers.lecun_normal(),
        bias_init: Initializer = nn.initializers.zeros_init(),
        use_bias: bool = True,
        num_heads: int = 1,
    ) -> None:
        """Declares the parameters of gates of one width; call it in `setup`.

        Args:
          *names: names of the gates in the parameter tree.
          features: width of each gate; None takes the cell's `features`.
          kernel_init: initializer of the kernel of each gate.
          bias_init: initializer of the bias of each gate, or a `PerGateInit`.
          use_bias: whether the gates have biases.
          num_heads: number of heads. Each connects an equal part of the inputs with an
            equal part of the features, so that the kernel is block-diagonal. It is
            stored as `(num_heads, features_in / num_heads, features / num_heads)`; with
            one head, as a matrix. Default: 1.

        Raises:
          TypeError: a name is not a string, or `num_heads` is not an int.
          ValueError: there are no names; `features` is neither an argument nor a field
            of the cell; `num_heads` is less than 1.
        """
        _check_names("gates", names)
        if features is None and not hasattr(self, "features"):
            raise ValueError(
                f"`gates` of {type(self).__name__} needs the width of the gates: pass "
                "`features` to `gates`, or add the field `features` to the cell."
            )
        check_count(type(self).__name__, "num_heads", num_heads)
        by_gate = bias_init if isinstance(bias_init, PerGateInit) else None
        # The gates share one key, so that `chrono` can draw their biases together.
        draws = use_bias and by_gate is not None and self.has_rng("params")
        key = self.make_rng("params") if draws else None
        for name in names:
            gate = DenseParams(
                features=self.features if features is None else features,
                use_bias=use_bias,
                kernel_init=kernel_init,
                bias_init=of_gate(by_gate, name, key) if by_gate else bias_init,
                param_dtype=getattr(self, "param_dtype", jnp.float32),
                num_heads=num_heads,
            )
            setattr(self, name, gate)

    @nn.nowrap
    def affine(self, inputs: Array, *names: str) -> Array:
        """Returns `inputs @ kernel + bias` of several gates, side by side.

        All gates are computed in one product.

        Args:
          inputs: `(*leading, features_in)`, with any leading axes.
          *names: names of gates declared with `gates`.

        Returns:
          `(*leading, sum of the widths of the gates)`.

        Raises:
          TypeError: a name is not a string.
          ValueError: there are no names, there is no gate of some name, or the gates
            differ in `num_heads`.
        """
        _check_names("affine", names)
        if not hasattr(inputs, "ndim"):
            raise TypeError(
                f"{type(self).__name__} multiplies one array by its weights, got "
                f"{type(inputs).__name__}. Join a list of steps with jnp.stack(steps, "
                "axis=-2), and several inputs with jnp.concatenate(inputs, axis=-1)."
            )
        gates: list[Any] = [getattr(self, name, None) for name in names]
        # Not the class of gates, because `DropConnectCell` has others in their place.
        heads: list[Any] = [getattr(gate, "num_heads", None) for gate in gates]
        if None in heads:
            raise ValueError(
                f"`affine` of {type(self).__name__} takes names of gates that `setup` "
                f"declares with self.gates(...): {list(self._gates())}, got "
                f"{names[heads.index(None)]!r}."
            )
        weights = [gate(inputs.shape[-1]) for gate in gates]
        if len(set(heads)) > 1:
            raise ValueError(
                f"`affine` of {type(self).__name__} needs gates with one number of "
                f"heads, got {sorted(set(heads))} for {list(names)}."
            )
        dtype = getattr(self, "dtype", None)
        if heads[0] == 1:
            return Affine(dtype)(inputs, side_by_side(weights))
        return block_affine(inputs, weights, dtype)

    def __call__(
        self, carry: Carry, inputs: ArrayTree, *, deterministic: bool | None = None
    ) -> tuple[Carry, ArrayTree]:
        """Applies one step.

        Args:
          carry: carry from `initialize_carry` or from the previous step.
          inputs: `(*batch, *features)`, with `num_feature_dims` feature axes.
          deterministic: overrides the field of a cell with dropout or zoneout; other
            cells ignore it.

        Returns:
          `(new_carry, output)`; the carry keeps its shapes and dtypes.

        Raises:
          ValueError: the shapes of `carry` do not fit the inputs or `features`.
          TypeError: `carry` is not floating or complex.
        """
        if self.scope is None:
            raise CallCompactUnboundModuleError()
        if self.is_initializing():
            self._check_bias_init()
        cell = self
        if deterministic is not None:
            cell = with_deterministic(self, deterministic, RNNCellBase)
        return cell._step(carry, inputs)

    @nn.nowrap
    def initialize_carry(  # type: ignore[override]  # Flax has no default arguments
        self,
        key: PRNGKey | None = None,
        sample_input: InputSpec | None = None,
        *old_args: Any,
        rng: PRNGKey | None = None,
        input_shape: InputSpec | None = None,
        **old_kwargs: Any,
    ) -> Carry:
        """Returns the carry before the first step.

        Args:
          key: random key for `carry_init`; None if `carry_init` needs no key.
          sample_input: one step of input, `(*batch, *features)`: an array, a
            `jax.ShapeDtypeStruct`, a pytree of them (the shape of the first leaf is
            used), or a shape. The last `num_feature_dims` axes are features, so a
            GRU's `(2,)` is one input of 2 features without a batch. Values are never
            read.
          *old_args: refused; Flax 0.6.11 took `(key, batch_dims, size)`.
          rng: `key` under its name in flax.linen.
          input_shape: `sample_input` under its name in flax.linen.
          **old_kwargs: refused, as `batch_dims=` and `size=` of Flax 0.6.11.

        Raises:
          ValueError: the sample has too few axes, or `features` is None.
          TypeError: the method is called on the class or with the arguments of Flax
            0.6.11, without a sample, or with a key that is no random key.
        """
        if old_args or old_kwargs or not isinstance(self, RNNCellBase):
            raise checks.wrong_initialize_carry(self, old_kwargs)
        for random_key in (key, rng):
            check_key(random_key)
        if key is not None and rng is not None:
            raise TypeError("Pass only one of `key` and `rng`, two names for the key.")
        if (sample_input is None) == (input_shape is None):
            raise TypeError("Pass exactly one of `sample_input` and `input_shape`.")
        key = rng if key is None else key
        sample = input_shape if sample_input is None else sample_input
        return self._initial_carry(key, input_structs(sample))

    @nn.nowrap
    def _initial_carry(self, key: PRNGKey | None, sample: StructTree) -> Carry:
        """Returns the carry before the first step, for structs of one step of input."""
        run_setup_for_params(self)
        name, shape = type(self).__name__, jax.tree.leaves(sample)[0].shape
        batch, features = split_axes(name, shape, self.num_feature_dims)
        shapes = self.carry_shape(features)
        parts, structure = jax.tree.flatten(shapes, is_leaf=is_shape)
        dtype = carry_dtype(getattr(self, "param_dtype", jnp.float32), sample)
        # A carry of one array uses `key` itself, as in flax.linen, so that a random
        # `carry_init` returns the same values.
        keys: Any = [key] * len(parts)
        if key is not None and len(parts) > 1:
            keys = jax.random.split(key, len(parts))
        zeros = nn.initializers.zeros_init()
        leaves = []
        for key, part in zip(keys, parts, strict=True):
            if isinstance(part, jax.ShapeDtypeStruct):
                shape, part_dtype = part.shape, part.dtype
            elif is_shape(part) and None not in part:
                shape, part_dtype = tuple(part), dtype
            else:
                raise checks.wrong_carry_shape(name, part)
            is_number = jnp.issubdtype(part_dtype, jnp.inexact)
            init = getattr(self, "carry_init", zeros) if is_number else zeros
            leaf = init(key, batch + shape, part_dtype)
            leaves.append(jnp.asarray(leaf, jnp.result_type(leaf)))  # strongly typed
        return jax.tree.unflatten(structure, leaves)

    @nn.nowrap
    def _step(self, carry: Carry, inputs: ArrayTree) -> tuple[Carry, ArrayTree]:
        """Applies one step.

        Kept separate so that an overridden `__call__` can be detected.
        """
        self._check_carry(carry, inputs)
        cell = with_width_of(self, carry)
        name, result = type(self).__name__, cell.recur(carry, cell.project(inputs))
        new_carry, output = check_returned("recur", name, result)
        shapes = jax.tree.map(jnp.shape, carry)
        new_shapes = jax.tree.map(jnp.shape, new_carry)
        if new_shapes != shapes:
            raise ValueError(
                f"`recur` of {name} must return (new_carry, output), a new carry with "
                f"the shapes of the old, {shapes}, got {new_shapes}."
            )
        return cast_like(new_carry, carry), output

    @nn.nowrap
    def _check_carry(self, carry: Carry, inputs: ArrayTree) -> None:
        """Raises an error unless the carry fits the inputs and `features`."""
        if type(self).carry_shape is RNNCellBase.carry_shape:
            return
        name, shape = type(self).__name__, jax.tree.leaves(inputs)[0].shape
        batch, features = split_axes(name, shape, self.num_feature_dims)
        shapes = self.carry_shape(features)
        if not has_form(carry, shapes, batch):
            raise checks.wrong_carry(self, carry, shapes, batch, inputs)

    @nn.nowrap
    def _check_bias_init(self) -> None:
        """Raises an error if a `PerGateInit` names no bias, so that all would be 0."""
        run_setup(self)
        init = getattr(self, "bias_init", None)
        if not (isinstance(init, PerGateInit) and getattr(self, "use_bias", True)):
            return
        names = {name for name, gate in self._gates().items() if gate.use_bias}
        if init.default is nn.initializers.zeros and not names & init.gates.keys():
            raise ValueError(
                f"`bias_init` of {type(self).__name__} must name gates with biases, "
                f"some of {sorted(names)}, got PerGateInit({sorted(init.gates)})."
            )

    @nn.nowrap
    def _input_gates(self, *names: str, **options: Any) -> None:
        """Declares gates of the inputs; initializers are the fields. See `gates`."""
        inits = {"kernel_init": self.kernel_init, "bias_init": self.bias_init}
        self.gates(*names, **inits | options)

    @nn.nowrap
    def _recurrent_gates(self, *names: str, **options: Any) -> None:
        """Declares gates of the state; initializers are the fields. See `gates`."""
        init = self.recurrent_kernel_init
        self._input_gates(*names, **{"kernel_init": init, **options})

    @nn.nowrap
    def _gates(self) -> dict[str, DenseParams]:
        return {k: v for k, v in vars(self).items() if isinstance(v, DenseParams)}

    # The methods of a step.
    _methods = ("project", "recur")  # type: tuple[str, ...]

    def __init_subclass__(cls, **options: Any) -> None:
        # Without Flax's wrappers, `nn.tabulate` and `nn.intercept_methods` see calls of
        # the cell alone, as for Flax's cells.
        if "carry_shape" in vars(cls):
            nn.nowrap(cls.carry_shape)
        for name in cls._methods:
            method = vars(cls).get(name)
            if method is not None and not hasattr(method, "compact"):
                setattr(cls, name, after_setup(method))
        super().__init_subclass__(**options)


def _check_names(method: str, names: tuple[Any, ...]) -> None:
    """Raises an error unless a method of a cell was called with names."""
    for name in names:
        if not isinstance(name, str):
            raise TypeError(
                f"`{method}` takes names as separate arguments, for example "
                f"{method}('i', 'h'), got {names}."
            )
    if not names:
        raise ValueError(f"`{method}` needs at least one name, got none.")


def split_axes(
    cell: str, shape: tuple[int, ...], feature_dims: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the batch axes and the feature axes of one step's input shape."""
    if shape == () and feature_dims == 1:
        # Flax accepts `()` for one step without batch axes, and ignores the width.
        return (), ()
    batch_dims = len(shape) - feature_dims
    if batch_dims < 0:
        raise ValueError(
            f"`sample_input` of {cell} must have at least {feature_dims} axes: any "
            f"batch axes and {feature_dims} feature axes, got the shape {tuple(shape)}."
        )
    return tuple(shape[:batch_dims]), tuple(shape[batch_dims:])

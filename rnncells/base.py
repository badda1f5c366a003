"""The contract of a recurrent cell, and what all cells share: carries and gates.

A cell is a projection and a recurrence:

    cell(carry, inputs) == cell.recur(carry, cell.project(inputs))

but for the dtypes of the carry, which a call keeps. `project` computes what needs the
inputs only, for any leading axes, so that a whole sequence can be projected at once;
`recur` computes what needs the carry. A cell states the shapes of its carry
(`carry_shape`); all else about carries is written here, once.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Initializer

from rnncells.applied import applied
from rnncells.carry import (
    Carry,
    PyTree,
    carry_dtype,
    cast_like,
    dtype_of,
    is_shape,
    sample_structs,
)
from rnncells.checks import check_fields, check_names, check_stepped
from rnncells.gates import GateParams, side_by_side
from rnncells.initializers import ByGate, check_by_gate, of_gate
from rnncells.recurrence import products
from rnncells.recurrence.affine import Affine


class RNNCellBase(nn.RNNCellBase):
    """Base of all cells: `carry, output = cell(carry, inputs)`.

    A subclass has the field `features` (None: taken from the carry) and, where it uses
    them, `dtype`, `param_dtype` and `carry_init`; it defines `num_feature_dims`,
    `carry_shape`, `setup`, `project` and `recur`:

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
    ...         a = self.affine(carry, "h", onto=projected)
    ...         carry = 0.9 * carry + 0.1 * nn.tanh(a)
    ...         return carry, carry
    >>> rnn = rnncells.RNN(LeakyCell(features=4))
    >>> outputs, _ = rnn.init_with_output(jax.random.key(0), jnp.ones((2, 5, 3)))
    >>> outputs.shape
    (2, 5, 4)

    Dtypes. The carry is made in `param_dtype`, complex where the input is complex, and
    each step returns it in the dtype in which it came, so that every cell can be
    scanned; a real carry that meets complex inputs is returned complex, as it must be.
    The computation runs in `dtype`, or in the promoted dtype of inputs and parameters
    if that is None; an output that is formed with the carry (of all cells but
    SimpleCell, and ProjectedLSTMCell, whose output is a product) has the wider of the
    two dtypes, as in flax.linen.
    """

    def __post_init__(self):
        check_fields(self)
        super().__post_init__()

    @property
    def num_feature_dims(self) -> int:
        """Number of trailing axes of the input that are not batch axes."""
        if type(self).num_feature_axes is RNNCellBase.num_feature_axes:
            raise NotImplementedError(
                f"{type(self).__name__} must define `num_feature_dims`."
            )
        return self.num_feature_axes

    @property
    def num_feature_axes(self) -> int:
        """The name that flax.linen has for `num_feature_dims`."""
        if type(self).num_feature_dims is RNNCellBase.num_feature_dims:
            raise NotImplementedError(
                f"{type(self).__name__} must define `num_feature_dims`."
            )
        return self.num_feature_dims

    def carry_shape(self, input_shape: tuple[int, ...]) -> PyTree:
        """Returns the shapes of the carry without batch axes: a pytree of tuples.

        It may read fields alone: it is called outside of `apply` too. A leaf may also
        be a `jax.ShapeDtypeStruct`, if its dtype is to be fixed; such a part starts at
        0 if it is of integers.

        Args:
          input_shape: the last `num_feature_dims` axes of the input.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `carry_shape`.")

    def project(self, inputs: PyTree) -> PyTree:
        """Returns what the inputs give to the step: any leading axes, no carry."""
        raise NotImplementedError(f"{type(self).__name__} must define `project`.")

    def recur(self, carry: Carry, projected: PyTree) -> tuple[Carry, PyTree]:
        """Returns `(new_carry, output)` of one step from the projected inputs."""
        raise NotImplementedError(f"{type(self).__name__} must define `recur`.")

    def __call__(self, carry: Carry, inputs: PyTree) -> tuple[Carry, PyTree]:
        """Applies one step.

        Args:
          carry: as returned by `initialize_carry` or by the step before.
          inputs: `(*batch, *features)`, with `num_feature_dims` feature axes.

        Returns:
          `(new_carry, output)`; the carry keeps its shapes and dtypes.

        Raises:
          ValueError: the carry does not fit the inputs or `features`.
        """
        if self.is_initializing():
            self._check_bias_init()
        return self._step(carry, inputs)

    @nn.nowrap
    def _step(self, carry: Carry, inputs: PyTree) -> tuple[Carry, PyTree]:
        """Applies one step; apart, as loops are slow where `__call__` is overridden."""
        self._check_carry(carry, inputs)
        self._take_shape(jnp.shape(jax.tree.leaves(carry)[-1]))
        stepped = self.recur(carry, self.project(inputs))
        new_carry, output = check_stepped(type(self).__name__, stepped, carry)
        return cast_like(new_carry, carry), output

    @nn.nowrap
    def _take_shape(self, shape: tuple[int, ...]) -> None:
        """Sets the shape of the carry's last part, which tells the width and batch."""
        # Modules are frozen, and the shape is known no sooner.
        object.__setattr__(self, "_carry_shape", shape)

    def _check_bias_init(self) -> None:
        if getattr(self, "use_bias", True):
            names = [name for name, gate in self._gates().items() if gate.use_bias]
            init = getattr(self, "bias_init", None)
            check_by_gate(type(self).__name__, init, names)

    @nn.nowrap
    def initialize_carry(
        self,
        key: jax.Array | None = None,
        sample_input: PyTree = None,
        *,
        rng: jax.Array | None = None,
        input_shape: PyTree = None,
    ) -> Carry:
        """Returns the carry before the first step.

        Args:
          key: random key, for `carry_init`; None will do if that needs none.
          sample_input: one step of input, `(*batch, *features)`: an array, a
            `jax.ShapeDtypeStruct`, a pytree of those (the first leaf counts), or a
            shape (of unknown dtype). Values are never read.
          rng: the name that flax.linen has for `key`.
          input_shape: the name that flax.linen has for `sample_input`.

        Raises:
          ValueError: the sample has too few axes, or `features` is None.
          TypeError: called on the class, as before Flax 0.7.
        """
        if not isinstance(self, nn.Module):
            raise TypeError(
                "`initialize_carry` is a method of the instance: write "
                "cell.initialize_carry(key, sample_input), where sample_input is one "
                "step of input, not initialize_carry(key, batch_dims, size)."
            )
        key = rng if key is None else key
        if (sample_input is None) == (input_shape is None):
            raise TypeError("give `sample_input`, or else `input_shape`, its alias.")
        sample = input_shape if sample_input is None else sample_input
        specs, treedef = jax.tree.flatten(self._carry_structs(sample_structs(sample)))
        # One leaf takes the key itself, as in flax.linen, so that a random
        # `carry_init` gives Flax's values.
        keys = [key] * len(specs)
        if key is not None and len(specs) > 1:
            keys = jax.random.split(key, len(specs))
        zeros = nn.initializers.zeros_init()
        leaves = []
        for key, spec in zip(keys, specs, strict=True):
            is_number = jnp.issubdtype(spec.dtype, jnp.inexact)
            init = getattr(self, "carry_init", zeros) if is_number else zeros
            leaves.append(init(key, spec.shape, spec.dtype))
        return jax.tree.unflatten(treedef, leaves)

    @nn.nowrap
    def _carry_structs(self, sample: PyTree) -> PyTree:
        """Returns the carry as `jax.ShapeDtypeStruct`s, batch axes first."""
        param_dtype = getattr(self, "param_dtype", jnp.float32)
        dtype = carry_dtype(param_dtype, sample)
        batch, features = split_shape(self, jax.tree.leaves(sample)[0].shape)

        def struct(leaf):
            if isinstance(leaf, jax.ShapeDtypeStruct):
                return jax.ShapeDtypeStruct(batch + leaf.shape, leaf.dtype)
            if None in leaf:
                raise ValueError(
                    f"`features` of {type(self).__name__} is None, so the carry cannot "
                    "be made from the input: give the carry, or give `features`."
                )
            return jax.ShapeDtypeStruct(batch + tuple(leaf), dtype)

        return jax.tree.map(struct, self.carry_shape(features), is_leaf=is_shape)

    @nn.nowrap
    def _check_carry(self, carry: Carry, inputs: PyTree) -> None:
        """Raises unless the carry has the shapes that the inputs and features ask."""
        if type(self).carry_shape is RNNCellBase.carry_shape:
            return
        input_shape = jax.tree.leaves(inputs)[0].shape
        batch, features = split_shape(self, input_shape)
        own = self.carry_shape(features)
        shapes, structure = jax.tree.flatten(own, is_leaf=is_shape)
        expected = [batch + tuple(getattr(s, "shape", s)) for s in shapes]
        leaves = jax.tree.leaves(carry)
        fits = jax.tree.structure(carry) == structure and all(
            len(jnp.shape(leaf)) == len(shape)
            and all(n in (None, m) for n, m in zip(shape, jnp.shape(leaf), strict=True))
            for leaf, shape in zip(leaves, expected, strict=True)
        )
        if not fits:
            features = getattr(self, "features", None)
            raise ValueError(
                f"`carry` of {type(self).__name__}(features={features}) must have "
                f"shapes {jax.tree.unflatten(structure, expected)} for inputs of shape "
                f"{input_shape}, got {jax.tree.map(jnp.shape, carry)}."
            )
        for leaf, shape in zip(leaves, shapes, strict=True):
            dtype = dtype_of(leaf)
            if is_shape(shape) and not jnp.issubdtype(dtype, jnp.inexact):
                raise TypeError(
                    f"`carry` of {type(self).__name__} must be floating or complex, "
                    f"got {dtype}."
                )

    @nn.nowrap
    def gates(
        self,
        *names: str,
        features: int | None = None,
        kernel_init: Initializer = nn.initializers.lecun_normal(),
        bias_init: Initializer = nn.initializers.zeros_init(),
        use_bias: bool = True,
    ) -> None:
        """Declares, in `setup`, the parameters of gates of one width.

        Args:
          *names: names of the gates, which are the names in the parameter tree.
          features: width of each gate; None means the cell's `features`.
          kernel_init: initialiser of each gate's kernel.
          bias_init: initialiser of each gate's bias; a `ByGate` knows them by name.
          use_bias: whether the gates have biases.

        Raises:
          TypeError: a name that is no string.
          ValueError: no `features`, here and as a field of the cell.
        """
        check_names("gates", names)
        if features is None and not hasattr(self, "features"):
            raise ValueError(
                f"`gates` of {type(self).__name__} needs their width: give `features`, "
                "here or as a field of the cell."
            )
        # One key for all, that biases of different gates can be drawn together.
        draws = use_bias and isinstance(bias_init, ByGate) and self.has_rng("params")
        key = self.make_rng("params") if draws else None
        for name in names:
            gate = GateParams(
                features=self.features if features is None else features,
                use_bias=use_bias,
                kernel_init=kernel_init,
                bias_init=of_gate(bias_init, name, key),
                param_dtype=getattr(self, "param_dtype", jnp.float32),
            )
            setattr(self, name, gate)

    @nn.nowrap
    def _gates(self) -> dict[str, GateParams]:
        return {k: v for k, v in vars(self).items() if isinstance(v, GateParams)}

    @nn.nowrap
    def affine(
        self, inputs: jax.Array, *names: str, onto: jax.Array | None = None
    ) -> jax.Array:
        """Returns `inputs @ kernel + bias` of the gates named, side by side.

        It is formed as one product. In `recur`, this (or `product`) is how to multiply
        the carry with weights: what is written so is fast, unless it stands inside a
        transformation (as `jax.vmap` or `jax.checkpoint`) within `recur`.

        Args:
          inputs: `(*leading, features_in)`, any leading axes.
          *names: gates declared with `gates`.
          onto: what the result is added to, of its shape.

        Returns:
          `(*leading, sum of the gates' features)`.

        Raises:
          TypeError: a name that is no string.
          ValueError: no names, or one that is no gate.
        """
        check_names("affine", names)

        def parts():
            shape = getattr(self, "_carry_shape", ())
            width = shape[-1] if shape else None
            gates = [self._gate(name) for name in names]
            params = [gate(inputs.shape[-1], width) for gate in gates]
            return Affine(getattr(self, "dtype", None)), side_by_side(params)

        return products.product(parts, inputs, onto)

    @nn.nowrap
    def _gate(self, name: str) -> GateParams:
        gate = getattr(self, name, None)
        if isinstance(gate, GateParams):
            return gate
        declared = list(self._gates())
        raise ValueError(
            f"`affine` of {type(self).__name__} must be given names of gates, which "
            f"`setup` declares by self.gates(...): {declared}; got {name!r}."
        )

    @nn.nowrap
    def product(
        self, layer: nn.Module, inputs: jax.Array, onto: jax.Array | None = None
    ) -> jax.Array:
        """Returns `layer(inputs)` of a layer that is affine in its inputs.

        In `recur`, this is how to apply a `flax.linen` layer such as Conv or Dense to
        the carry: the gradient of its weights is then formed after the loop over time.
        In `project` it is as good as the plain call, and on CPU faster for Conv.

        Args:
          layer: a submodule without state or randomness.
          inputs: what it is applied to.
          onto: what the result is added to, of its shape.

        Raises:
          TypeError: `layer` is no layer.
          ValueError: in `recur`, a layer that is not affine.
        """
        if not isinstance(layer, nn.Module) or isinstance(layer, GateParams):
            got = type(layer).__name__ if isinstance(layer, nn.Module) else repr(layer)
            raise TypeError(
                f"`product` of {type(self).__name__} must be given a layer, as "
                f"self.product(self.dense, h), got {got}. (Gates go to `affine`.)"
            )
        if self.is_initializing():
            result = layer(inputs)
            return result if onto is None else onto + result

        def parts():
            unbound, variables = layer.unbind()
            return applied(unbound), variables

        return products.product(parts, inputs, onto)


def feature_dims(cell: nn.Module) -> int:
    """Returns the number of feature axes of any cell, ours, Flax's or a user's."""
    for name in ("num_feature_dims", "num_feature_axes"):
        if hasattr(cell, name):
            return getattr(cell, name)
    raise TypeError(
        f"{type(cell).__name__} is no cell: it has neither `num_feature_dims` nor "
        "`num_feature_axes`."
    )


def split_shape(
    cell: nn.Module, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the batch axes and the feature axes of one step's input shape."""
    dims = feature_dims(cell)
    if shape == () and dims == 1:
        # Flax takes this for one step without batch axes, its width left out.
        return (), ()
    if len(shape) < dims:
        raise ValueError(
            f"`sample_input` of {type(cell).__name__} must have at least {dims} axes "
            f"(*batch, and {dims} of features), got the shape {tuple(shape)}."
        )
    cut = len(shape) - dims
    return tuple(shape[:cut]), tuple(shape[cut:])

"""An error that says what to do where forward mode meets a reverse-mode function."""

import contextlib
from collections.abc import Iterator

import chex
import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

MESSAGE = (
    "the fast loop of RNN has no forward mode (jax.jvp, jax.jacfwd, jax.linearize "
    "evaluated): use RNN(..., implementation='scan'), which has."
)


@jax.custom_jvp
def reverse_only(tree: chex.ArrayTree) -> chex.ArrayTree:
    """Returns the tree; its derivatives exist in reverse mode alone.

    Raises:
      TypeError: in forward mode, when tangents are computed.
    """
    return tree


def _reverse_only_jvp(primals, tangents):
    (tree,), (tangent,) = primals, tangents
    return tree, jax.tree.map(_mark, tangent)


# What is not differentiated here may still be by an outer forward mode, which is right.
reverse_only.defjvp(_reverse_only_jvp, symbolic_zeros=True)


@contextlib.contextmanager
def naming_the_option() -> Iterator[None]:
    """Puts this file's error in place of JAX's, which may come first under `vmap`."""
    try:
        yield
    except TypeError as error:
        if "forward-mode autodiff" in str(error):
            raise TypeError(MESSAGE) from error
        raise


def _mark(tangent):
    if isinstance(tangent, SymbolicZero):
        return jnp.zeros(tangent.shape, tangent.dtype)
    return _marked.bind(tangent)


def _fail(*args, **kwargs):
    raise TypeError(MESSAGE)


# A linear map that is the identity to what transposes it, and fails where evaluated.
_marked = Primitive("reverse_only")
_marked.def_impl(_fail)
_marked.def_abstract_eval(lambda aval: aval)
ad.deflinear2(_marked, lambda gradient, _: [gradient])
batching.primitive_batchers[_marked] = lambda args, axes: (
    _marked.bind(*args),
    axes[0],
)
mlir.register_lowering(_marked, _fail)

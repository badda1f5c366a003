"""Loads, renames and saves parameters, as plain arrays.

=============================================== ========================================
to do this                                      use
=============================================== ========================================
load weights of PyTorch                         `pytorch.from_state_dict`
load weights of Keras                           `keras.from_weights`
load weights of Haiku                           `haiku.from_params`
load weights of Equinox                         `equinox.from_module`
load weights of `jax.experimental.rnn`          `jax_rnn.from_weights`
load weights of Flax NNX                        `flax_nnx.from_module`
write weights for one of these libraries        `to_...` in the same module
rename parameters to those of another module    `renaming.rename`
load variables from a safetensors file          `files.load`
load arrays of another library from a file      `files.load_arrays`
save variables in a safetensors file            `files.save`
=============================================== ========================================

Functions `from_...` take a layer and another library's arrays, and return variables of
the layer, `{"params": ...}`, in its `param_dtype`. Functions `to_...` take a layer and
its variables. The layer is `LSTM`, `GRU`, `ElmanRNN`, `RNN`, `Bidirectional`, or a
cell; its fields determine the arrays that there must be.

Both raise TypeError if the other library has no such layer, and `from_...` if its
argument is no container of arrays. They raise one ValueError that lists all arrays that
are missing, unknown, or have another shape, and for learned states in `to_...`, which
other libraries do not have.

Only `files` imports another library, safetensors. See also docs/api/interop.md: orders
of gates, sums of biases, and what holds for one library alone.
"""

from rnncells import _lazy

_lazy.attach(__name__)

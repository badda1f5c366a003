"""Sequence packing: several sequences in each row, to save most of the padding.

A padded batch `(batch, time, *features)` is as long as its longest sequence, and a
layer computes the padding too. A packed batch puts several sequences into each row, one
after another, and `resets` tell `RNN` where each begins. A `Plan` assigns each sequence
to a place. It packs lists of sequences on the host,

>>> import jax, jax.numpy as jnp, numpy as np, rnncells
>>> from rnncells import packing
>>> sequences = [np.ones((n, 3)) for n in (4, 1, 0, 2)]
>>> inputs, plan = packing.pack(sequences, row_length=4)
>>> plan.segment_ids
array([[1, 1, 1, 1],
       [1, 1, 2, 0]], dtype=int32)
>>> rnn = rnncells.RNN(rnncells.GRUCell(5))
>>> params = rnn.init(jax.random.key(0), inputs)
>>> outputs = rnn.apply(params, inputs, resets=plan.resets, mask=plan.mask)
>>> [y.shape for y in packing.unpack(outputs, plan)]
[(4, 5), (1, 5), (0, 5), (2, 5)]

and padded batches, under any transformation:

>>> @jax.jit
... def last_outputs(params, plan, batch):
...     rows = plan.pack(batch)
...     return plan.last(rnn.apply(params, rows, resets=plan.resets, mask=plan.mask))
>>> last_outputs(params, plan, jnp.ones((4, 6, 3))).shape
(4, 5)

`Bidirectional` takes the same arguments. With `reverse=True`, also pass
`keep_order=True`, because rows are unpacked in the order of the inputs. Each sequence
starts with the cell's initial carry. To start with another carry, pass it as both
`reset_carry` and `initial_carry` (in reverse, a full row starts without a reset).
`VariationalDropout` draws one mask for each row, so all sequences of a row share it.

Sources: segment ids as in T5 (Raffel et al., 2020, https://arxiv.org/abs/1910.10683),
which masks attention between sequences; here the carry is reset. PyTorch's
`PackedSequence` interleaves sequences, and its shapes depend on the lengths; here the
shapes are fixed, so programs are compiled once.
"""

from rnncells.packing.lists import Packed as Packed
from rnncells.packing.lists import pack as pack
from rnncells.packing.lists import unpack as unpack
from rnncells.packing.plans import Plan as Plan
from rnncells.packing.plans import plan as plan

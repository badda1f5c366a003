"""Many sequences in few rows: the steps of a padded batch without most of its padding.

Sequences of many lengths in one batch `(batch, time, *features)` are padded to the
longest, and a layer runs the padding too. Packed, they stand one after another in rows
of one length, and `resets` tell `RNN` where each begins. One concept, the `Plan`, says
which sequence goes where; it serves lists of sequences, on the host,

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

`Bidirectional` takes the same arguments. With `reverse=True`, give `keep_order=True`:
rows are unpacked in the order of the inputs. Each sequence begins with the cell's own
carry; for another one, give the same to `reset_carry` and `initial_carry` (a full row
is entered in reverse without a reset). A random stream is that of a row, so sequences
of one row have the same masks where those are of a row (`VariationalDropout`).

Sources: PyTorch's `PackedSequence` interleaves sequences step by step, and its shapes
follow the lengths; here they are fixed, so that programs are compiled once. Segment ids
are those of T5 (Raffel et al., 2020, https://arxiv.org/abs/1910.10683); where its
attention is masked to keep sequences apart, the carry is reset.
"""

from rnncells.packing.lists import Packed as Packed
from rnncells.packing.lists import pack as pack
from rnncells.packing.lists import unpack as unpack
from rnncells.packing.plans import Plan as Plan
from rnncells.packing.plans import plan as plan

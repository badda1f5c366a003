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
...     print("compiled for", plan.mask.shape)
...     rows = plan.pack(batch)
...     return plan.last(rnn.apply(params, rows, resets=plan.resets, mask=plan.mask))
>>> last_outputs(params, plan, jnp.ones((4, 6, 3))).shape
compiled for (2, 4)
(4, 5)

Pass `resets` and `mask` together. A layer cannot recognize packed rows: without
`resets`, it reads each row as one long sequence and raises no error.

Streams of batches: a program is compiled once for all plans of equal shapes. Give every
plan the same `row_length`, the same `rows` and the same number of sequences, and extend
smaller batches by lengths of 0. These batches use the program from above:

>>> for lengths in [[3, 3], [4, 2, 2], [1]]:
...     lengths += [0] * (4 - len(lengths))
...     plan = packing.plan(lengths, row_length=4, rows=2)
...     outputs = last_outputs(params, plan, jnp.ones((4, 6, 3)))

To choose `rows`, take the most rows that `plan` needs for many batches of your data. In
longer rows this number varies less. For example, the 270 training utterances of
Japanese Vowels have 7 to 26 frames. 300 random batches of 30 utterances needed 14 to 22
rows of 32 steps, but 7 to 9 rows of 64 steps, so `row_length=64, rows=9` computes 576
steps where batches padded to 26 frames have 780.

Packing pays for large batches with much padding. On two cores of an AMD EPYC, the
gradient of an LSTM with 64 features for all 270 utterances, in rows of 64, takes 0.7
times as long as for the padded batch (with 128 features 0.45 to 0.6 times). For batches
of 30 it takes 0.9 (0.8) times as long, because the loop has more steps, each with a
smaller product.

`Bidirectional` takes the same arguments. With `reverse=True`, also pass
`keep_order=True`, because rows are unpacked in the order of the inputs. Each sequence
starts with the cell's initial carry. To start with another carry, pass it as both
`reset_carry` and `initial_carry` (in reverse, a full row starts without a reset).
`VariationalDropout` draws one mask for each row, so all sequences of a row share it.

Sources: segment ids as in T5 (Raffel et al., 2020, https://arxiv.org/abs/1910.10683),
which masks attention between sequences; here the carry is reset. PyTorch's
`PackedSequence` interleaves sequences, and its shapes depend on the lengths; here the
shapes can be fixed, so programs are compiled once.
"""

from rnncells.packing.lists import Packed as Packed
from rnncells.packing.lists import pack as pack
from rnncells.packing.lists import unpack as unpack
from rnncells.packing.plans import Plan as Plan
from rnncells.packing.plans import plan as plan

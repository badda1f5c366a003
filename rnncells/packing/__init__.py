"""Sequence packing: several sequences in each row, to save most of the padding.

>>> import jax, numpy as np, rnncells
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

Pass `resets` and `mask` together. A layer cannot recognize packed rows: without
`resets`, it reads each row as one long sequence and raises no error. See also
docs/api/packing.md: streams of batches, reversed layers and measurements.
"""

from rnncells.packing.lists import Packed as Packed
from rnncells.packing.lists import pack as pack
from rnncells.packing.lists import unpack as unpack
from rnncells.packing.plans import Plan as Plan
from rnncells.packing.plans import plan as plan

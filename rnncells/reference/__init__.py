"""Closed forms of steps and their derivatives, for reading and for tests.

Each line is one equation. The code does not use automatic differentiation, and it is
not fast. All cells have the same two functions; vectors are `(*batch, features)`:

`step(params, carry, x)` returns the new carry and the output of one step. `params` are
the parameters of the cell of rnncells, `variables["params"]`: kernels, and biases of
some or all gates.

`step_vjp(params, carry, x, d_carry, d_h)` returns the derivatives of a loss with
respect to `params` (summed over the batch), `carry` and `x`. `d_carry` is the
derivative with respect to the carry after the step, from the next step, and `d_h`
(`d_y_c` of the LSTM of 1997) that with respect to the output of the step; None stands
for zeros, also for a part of `d_carry`. With `return_gates=True`, the derivatives with
respect to the arguments of the activation functions follow, by the name of the gate.

They raise ValueError if shapes do not fit, names of parameters are missing or unknown,
or all derivatives are None. `sequence` and `sequence_vjp` run steps over time.
"""

from rnncells.reference.elman import elman_step as elman_step
from rnncells.reference.elman import elman_step_vjp as elman_step_vjp
from rnncells.reference.gru import gru_step as gru_step
from rnncells.reference.gru import gru_step_vjp as gru_step_vjp
from rnncells.reference.lstm import lstm_step as lstm_step
from rnncells.reference.lstm import lstm_step_vjp as lstm_step_vjp
from rnncells.reference.lstm1997 import lstm1997_step as lstm1997_step
from rnncells.reference.lstm1997 import lstm1997_step_vjp as lstm1997_step_vjp
from rnncells.reference.sequence import sequence as sequence
from rnncells.reference.sequence import sequence_vjp as sequence_vjp

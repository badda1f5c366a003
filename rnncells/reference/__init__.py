"""Closed forms of steps and their derivatives, for reading and for tests.

Each line is one equation. The code does not use automatic differentiation, and it is
not fast. Steps sum the derivatives of parameters over the batch, `sequence_vjp` sums
them over time.
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

"""Values of a recurrence, and the flow of gradients through it, for looking at.

All functions are pure: they take arrays and return arrays, under `jit` too, and they
need no change of a cell. `rnncells.plots` draws what they return. They raise ValueError
if a mask does not fit, or if the last two axes of Jacobians differ in size.
"""

from rnncells.diagnostics.graph.backward_graph import BackwardGraph as BackwardGraph
from rnncells.diagnostics.graph.builder import backward_graph as backward_graph
from rnncells.diagnostics.graph.nodes import Accumulate as Accumulate
from rnncells.diagnostics.graph.nodes import Cut as Cut
from rnncells.diagnostics.graph.nodes import Edge as Edge
from rnncells.diagnostics.graph.nodes import Node as Node
from rnncells.diagnostics.graph.nodes import Operation as Operation
from rnncells.diagnostics.graph.nodes import Saved as Saved
from rnncells.diagnostics.graph.tape import Tape as Tape
from rnncells.diagnostics.recording import cotangents as cotangents
from rnncells.diagnostics.recording import record as record
from rnncells.diagnostics.recording import step_values as step_values
from rnncells.diagnostics.recording_loop import Recorded as Recorded
from rnncells.diagnostics.statistics import Drift as Drift
from rnncells.diagnostics.statistics import Saturation as Saturation
from rnncells.diagnostics.statistics import by_lag as by_lag
from rnncells.diagnostics.statistics import carry_gradients as carry_gradients
from rnncells.diagnostics.statistics import drift as drift
from rnncells.diagnostics.statistics import lyapunov_exponents as lyapunov_exponents
from rnncells.diagnostics.statistics import norms as norms
from rnncells.diagnostics.statistics import saturation as saturation

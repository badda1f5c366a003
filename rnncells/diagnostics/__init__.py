"""What a recurrence computes and how gradients flow through it, for looking at.

All functions are pure: they take arrays and return arrays, under `jit` too, and they
need no change of a cell. `rnncells.plots` draws what they return.
"""

from rnncells.diagnostics.graph.backward_graph import BackwardGraph as BackwardGraph
from rnncells.diagnostics.graph.nodes import Accumulate as Accumulate
from rnncells.diagnostics.graph.nodes import Cut as Cut
from rnncells.diagnostics.graph.nodes import Edge as Edge
from rnncells.diagnostics.graph.nodes import Node as Node
from rnncells.diagnostics.graph.nodes import Operation as Operation
from rnncells.diagnostics.graph.nodes import Saved as Saved
from rnncells.diagnostics.graph.tape import Tape as Tape
from rnncells.diagnostics.graph.tracing import backward_graph as backward_graph

"""What running a backward graph needs, beside its nodes."""

from typing import Any, NamedTuple

from rnncells.diagnostics.graph.nodes import Edge, Operation
from rnncells.diagnostics.graph.steps import Step
from rnncells.recurrence.jaxprs import Equations


class Recorded(NamedTuple):
    """A step that has a node.

    Attributes:
      node: its node.
      wanted: numbers of the step's operands that get a gradient.
      edges: where these gradients go.
    """

    node: Operation
    wanted: tuple[int, ...]
    edges: tuple[Edge, ...]


class Program(NamedTuple):
    """A function as steps, of which some are recorded.

    Attributes:
      equations: of the function; its arguments are single leaves.
      steps: in the order of the forward pass.
      recorded: the steps that have a node.
      bound: arguments before those of the user: the params of a bound module.
      arguments: shapes and dtypes of the user's arguments, as a tuple of pytrees.
      result: shapes and dtypes of the result, as a pytree.
    """

    equations: Equations
    steps: list[Step]
    recorded: dict[Step, Recorded]
    bound: tuple[Any, ...]
    arguments: tuple[Any, ...]
    result: Any

"""Nodes and edges of a backward graph, as data."""

from dataclasses import dataclass
from typing import Any

import jax

from rnncells.recurrence.pytrees import array_text

# Leaves have the largest number, as in PyTorch: their gradients are added up first.
LEAF_ORDER = 2**64 - 1


@dataclass(frozen=True, eq=False)
class Saved:
    """A value that an operation keeps for its backward pass.

    Attributes:
      formula: the value in the letters of the operation's equation, as `1 - z * z`.
      source: `"operand"` if the operation reads it, `"result"` if it is what the
        operation returns, `"computed"` if it exists only for the backward pass.
      type: shape and dtype.
      of: the array: equal for two nodes that keep the same array.
      argument: name of the argument or the constant that it is; None for others.
    """

    formula: str
    source: str
    type: jax.ShapeDtypeStruct
    of: Any
    argument: str | None = None

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.type.size * self.type.dtype.itemsize

    def __str__(self) -> str:
        name = f" (argument {self.argument})" if self.argument else ""
        return f"{self.formula}{name}  {array_text(self.type)}  {self.nbytes} bytes"


@dataclass(frozen=True, eq=False)
class Edge:
    """The way of a gradient from a node, or from the start, to the next node.

    Attributes:
      node: the next node; None if the operand needs no gradient.
      output: the number of the next node's output whose gradient it is.
      type: shape and dtype of the gradient.
      operand: the operand's letter in the equation of an operation, or the name of a
        result of the graph.
    """

    node: "Node | None"
    output: int
    type: jax.ShapeDtypeStruct
    operand: str

    @property
    def carries_gradient(self) -> bool:
        """Whether a gradient flows along the edge: not to constants, not to cuts."""
        return self.node is not None and not isinstance(self.node, Cut)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Node:
    """A node: an operation on a gradient, or one of its ends.

    Attributes:
      name: name of the operation, without PyTorch's ending `Backward0`.
      order: number of the operation in the order of the forward pass, from 0
        (PyTorch's `_sequence_nr`). The backward pass starts with the largest.
      outputs: shapes and dtypes of the results, and of their gradients.
      device: where the values are, as `cpu:0`; None if only shapes were given.
      edges: where the gradients of the operands go, with cuts; leaves have no edges.
      saved: values that are kept for the backward pass.
    """

    name: str
    order: int = LEAF_ORDER
    outputs: tuple[jax.ShapeDtypeStruct, ...]
    device: str | None
    edges: tuple[Edge, ...] = ()
    saved: tuple[Saved, ...] = ()

    @property
    def next_functions(self) -> tuple[tuple["Node | None", int], ...]:
        """The edges as PyTorch has them: pairs of a node, or None, and a number."""
        return tuple(
            (edge.node, edge.output) if edge.carries_gradient else (None, 0)
            for edge in self.edges
        )

    @property
    def label(self) -> str:
        """Name and number, which are unique in a graph."""
        return f"{self.name} {self.order}"

    def __repr__(self) -> str:
        return f"<{self.label}>"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Operation(Node):
    """An operation that has a gradient.

    Attributes:
      forward: equation of the forward pass: `z = x * y`.
      backward: equation of the backward pass. dz is the gradient of the loss with
        respect to z: `dx = dz * y; dy = dz * x`.
      words: the backward pass in words.
      inner: graphs of what the operation calls: the step of a scan, the branches of a
        condition, a checkpointed function.
    """

    forward: str
    backward: str
    words: str
    inner: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Accumulate(Node):
    """A leaf where gradients of an argument, as `params['hi']['kernel']`, add up."""

    name: str = "Accumulate"
    argument: str

    @property
    def label(self) -> str:
        return f"{self.name} {self.argument}"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Cut(Node):
    """A leaf where gradients end, although the value depends on `arguments`, by name.

    The reason is `stop_gradient`, or an operation whose derivative is zero.
    """

    name: str = "Cut"
    reason: str
    arguments: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.name} ({self.reason})"

"""A syntax tree with the parents, positions and scopes of its nodes."""

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import libcst as cst
from libcst.metadata import (
    ParentNodeProvider,
    PositionProvider,
    Scope,
    ScopeProvider,
)

PROVIDERS = (ParentNodeProvider, PositionProvider, ScopeProvider)
SKIP = "# rnncells: skip"
MARK = "# TODO(rnncells): "
NEWLINE = re.compile(r"\r\n|\r|\n")


class Tree:
    """The nodes of a module, and where they stand.

    Args:
      module: the root of the tree.
      metadata: returns what a provider of LibCST knows about a node, or a default.
    """

    def __init__(self, module: cst.Module, metadata: Callable[..., Any]):
        self.module, self._metadata = module, metadata
        self.text = module.code
        self.lines = NEWLINE.split(self.text)
        self.nodes = list(walk(module))

    @cached_property
    def calls(self) -> list[cst.Call]:
        return [node for node in self.nodes if isinstance(node, cst.Call)]

    @cached_property
    def names(self) -> dict[str, list[cst.Name]]:
        """The places of each name, other than attributes and keywords."""
        places: dict[str, list[cst.Name]] = {}
        for node in self.nodes:
            if isinstance(node, cst.Name) and self.scope(node) is not None:
                places.setdefault(node.value, []).append(node)
        return places

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self._metadata(ParentNodeProvider, node, None)

    def scope(self, node: cst.CSTNode) -> Scope | None:
        return self._metadata(ScopeProvider, node, None)

    def start(self, node: cst.CSTNode) -> tuple[int, int]:
        """Returns the line and the column at which a node starts."""
        position = self._metadata(PositionProvider, node).start
        return position.line, position.column

    def end(self, node: cst.CSTNode) -> tuple[int, int]:
        position = self._metadata(PositionProvider, node).end
        return position.line, position.column

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yields the nodes that hold a node, the nearest first."""
        parent = self.parent(node)
        while parent is not None:
            yield parent
            parent = self.parent(parent)

    def nearest(self, node: cst.CSTNode, *types: type) -> Any:
        """Returns the nearest node of these types that holds a node, or None."""
        return next((a for a in self.ancestors(node) if isinstance(a, types)), None)

    def function_of(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        return self.nearest(node, cst.FunctionDef)

    def class_of(self, node: cst.CSTNode) -> cst.ClassDef | None:
        return self.nearest(node, cst.ClassDef)

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """Returns the statement above which the comments about a node stand."""
        while not hasattr(node, "leading_lines"):
            node = self.parent(node)
        return node

    def is_in_string(self, node: cst.CSTNode) -> bool:
        return self.nearest(node, cst.FormattedString) is not None

    def is_left(self, node: cst.CSTNode) -> bool:
        """Returns whether the statement of a node has a mark or a skip comment."""
        statement = self.statement(node)
        first, last = self._lines_of(statement)
        if any(SKIP in line for line in self.lines[first - 1 : last]):
            return True
        return any(MARK in line for line in self.comments_above(statement))

    def _lines_of(self, statement: cst.CSTNode) -> tuple[int, int]:
        """Returns the first and the last line of a statement, without its body."""
        first, last = self.start(statement)[0], self.end(statement)[0]
        decorators = getattr(statement, "decorators", ())
        if decorators:
            first = self.start(decorators[0])[0]
        body = getattr(statement, "body", None)
        if isinstance(body, cst.BaseSuite):
            last = max(self.start(statement)[0], self.start(body)[0] - 1)
        return first, last

    def comments_above(self, node: cst.CSTNode) -> list[str]:
        """Returns the lines of comments directly above the statement of a node."""
        line, _ = self._lines_of(self.statement(node))
        above = line - 1
        while above and self.lines[above - 1].lstrip().startswith("#"):
            above -= 1
        return self.lines[above : line - 1]

    def code(self, node: cst.CSTNode) -> str:
        """Returns the text of a node on one line, to compare it with others."""
        return " ".join(self.module.code_for_node(bare(node)).split())


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yields a node and all nodes in it, in the order of the text."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def bare(node: cst.CSTNode) -> cst.CSTNode:
    """Returns an expression without the parentheses around it."""
    needs_none = isinstance(node, cst.Tuple | cst.GeneratorExp)
    if needs_none or not getattr(node, "lpar", ()):
        return node
    return node.with_changes(lpar=(), rpar=())

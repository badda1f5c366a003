"""A syntax tree with the parents, positions and scopes of its nodes."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import libcst as cst
from libcst.metadata import ParentNodeProvider, PositionProvider, Scope, ScopeProvider

PROVIDERS = (ParentNodeProvider, PositionProvider, ScopeProvider)
SKIP = "# rnncells: skip"
MARK = "# TODO(rnncells): "


class Tree:
    """The nodes of a module, and what providers of LibCST know about them."""

    def __init__(self, module: cst.Module, metadata: Callable[..., Any]):
        self.module, self._metadata = module, metadata
        self.text = module.code
        self.lines = re.split(r"\r\n|\r|\n", self.text)
        self.nodes = list(walk(module))
        self.calls = [node for node in self.nodes if isinstance(node, cst.Call)]

    def parent(self, node: cst.CSTNode) -> Any:
        return self._metadata(ParentNodeProvider, node, None)

    def scope(self, node: cst.CSTNode) -> Scope | None:
        return self._metadata(ScopeProvider, node, None)

    def start(self, node: cst.CSTNode) -> tuple[int, int]:
        """Returns the line and the column at which a node starts."""
        position = self._metadata(PositionProvider, node).start
        return position.line, position.column

    def nearest(self, node: cst.CSTNode | None, *types: type) -> Any:
        """Returns the nearest node of these types that holds a node, or None."""
        while (node := self.parent(node)) is not None and not isinstance(node, types):
            pass
        return node

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """Returns the statement above which the comments about a node stand."""
        while not hasattr(node, "leading_lines"):
            node = self.parent(node)
        return node

    def is_left(self, node: cst.CSTNode) -> bool:
        """Returns whether the statement of a node has a mark or a skip comment."""
        first, last = self._lines_of(node)
        lines = self.lines[first - 1 : last]
        return SKIP in "".join(lines) or self.is_marked(node)

    def is_marked(self, node: cst.CSTNode) -> bool:
        """Returns whether the comments directly above a statement contain a mark."""
        line = self._lines_of(node)[0] - 2
        while line >= 0 and self.lines[line].lstrip().startswith("#"):
            if MARK in self.lines[line]:
                return True
            line -= 1
        return False

    def _lines_of(self, node: cst.CSTNode) -> tuple[int, int]:
        """Returns the first and last line of a node's statement, without its body."""
        statement = self.statement(node)
        decorators = getattr(statement, "decorators", ())
        first = self.start(decorators[0] if decorators else statement)[0]
        body = getattr(statement, "body", None)
        if isinstance(body, cst.BaseSuite):
            return first, max(self.start(statement)[0], self.start(body)[0] - 1)
        return first, self._metadata(PositionProvider, statement).end.line

    def code(self, node: cst.CSTNode) -> str:
        """Returns the text of a node on one line, to compare it with others."""
        return " ".join(self.module.code_for_node(bare(node)).split())


def walk(node: cst.CSTNode) -> Iterator[Any]:
    """Yields a node and all nodes in it, in the order of the text."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def bare(node: Any) -> Any:
    """Returns an expression without the parentheses around it."""
    if isinstance(node, cst.Tuple | cst.GeneratorExp) or not getattr(node, "lpar", ()):
        return node
    return node.with_changes(lpar=(), rpar=())

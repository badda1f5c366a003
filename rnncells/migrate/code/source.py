"""The text and syntax tree of a Python file, and edits of it.

Edits replace spans of bytes, so that comments and formatting elsewhere stay.
"""

import ast
import io
import re
import tokenize
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

SKIP = re.compile(r"#\s*rnncells:\s*skip\b")
# The start of the comment above a line that needs a person's decision.
MARK = "TODO(rnncells)"
# A line with a mark of a rule, after any line ending.
MARKED = re.compile(rf"(?<![^\r\n])[ \t\f]*#\s*{re.escape(MARK)}: (RC\d\d)".encode())
NEWLINE = re.compile(rb"\r\n|\r|\n")
BETWEEN_LINES = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
)
# Literals that contain code.
F_STRINGS = (ast.JoinedStr, getattr(ast, "TemplateStr", ast.JoinedStr))


@dataclass(frozen=True)
class Edit:
    """A replacement of the bytes from `start` to `end` of a file."""

    start: int
    end: int
    text: str


class Source:
    """A parsed file; its code is never run.

    Args:
      data: its bytes.

    Raises:
      SyntaxError: it is not Python, of this version.
    """

    def __init__(self, data: bytes):
        self.encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        try:
            text = data.decode(self.encoding)
        except (UnicodeError, LookupError) as error:
            raise SyntaxError(f"not {self.encoding}: {error}") from error
        self.tree = ast.parse(text)
        for node in self.nodes:
            if isinstance(node, F_STRINGS):
                # Before Python 3.12, positions inside an f-string are wrong.
                for part in ast.walk(node):
                    ast.copy_location(part, node)
        # Positions in the tree are counted in bytes of UTF-8.
        self.data = text.encode()
        ends = [match.end() for match in NEWLINE.finditer(self.data)]
        self.line_starts = [0, *ends]

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes, outer ones first."""
        return list(ast.walk(self.tree))

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node around each node."""
        return {
            child: node for node in self.nodes for child in ast.iter_child_nodes(node)
        }

    @cached_property
    def blocks(self) -> dict[ast.stmt, list[ast.stmt]]:
        """The list of statements that each statement belongs to."""
        return {
            statement: block
            for node in self.nodes
            for _, block in ast.iter_fields(node)
            if isinstance(block, list)
            for statement in block
            if isinstance(statement, ast.stmt)
        }

    def around(self, node: ast.AST, *kinds: type) -> ast.AST | None:
        """Returns the nearest node of the given types around a node."""
        while (node := self.parents.get(node)) is not None:
            if isinstance(node, kinds):
                return node
        return None

    def is_in_string(self, node: ast.AST) -> bool:
        """Returns whether a node is inside an f-string."""
        return self.around(node, *F_STRINGS) is not None

    def statement(self, node: ast.AST) -> ast.stmt:
        return node if isinstance(node, ast.stmt) else self.around(node, ast.stmt)

    def holds(self, around: ast.AST, node: ast.AST) -> bool:
        """Returns whether a node is inside another node or is that node."""
        if isinstance(around, ast.Module):
            return True
        return (
            self.start(around) <= self.start(node) <= self.end(node) <= self.end(around)
        )

    def start(self, node: ast.AST) -> int:
        return self.line_starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.AST) -> int:
        return self.line_starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.AST) -> str:
        """Returns the text of a node, without parentheses around it."""
        return self.data[self.start(node) : self.end(node)].decode()

    def name_of(self, keyword: ast.keyword) -> tuple[int, int]:
        """Returns where the name of a keyword argument starts and ends."""
        return self.code[bisect_left(self.code, (self.start(keyword),))][:2]

    def line(self, number: int) -> str:
        """Returns a line, counted from 1; "" outside the file."""
        if not 1 <= number <= len(self.line_starts):
            return ""
        ends = [*self.line_starts[1:], len(self.data)]
        return self.data[self.line_starts[number - 1] : ends[number - 1]].decode()

    @cached_property
    def marks(self) -> dict[int, str]:
        """The rule of each mark in the file, by the number of its line."""
        return {
            bisect_right(self.line_starts, match.start(1)): match[1].decode()
            for match in MARKED.finditer(self.data)
        }

    @cached_property
    def newline(self) -> str:
        """The line ending of the first line, which added lines get too."""
        found = NEWLINE.search(self.data)
        return found[0].decode() if found else "\n"

    def indent(self, number: int) -> str:
        line = self.line(number)
        return line[: len(line) - len(line.lstrip())]

    def first_line(self, number: int) -> int:
        """Returns the first physical line of the logical line with a given number."""
        return self._logical_lines.get(number, (number, number))[0]

    def behind(self, number: int, lines: list[str], indent: str) -> Edit:
        """Returns the edit that adds lines after a logical line."""
        number = self._logical_lines.get(number, (number, number))[1]
        line = self.line(number)
        at = self.line_starts[number - 1] + len(line.rstrip("\r\n").encode())
        text = [f"{indent}{line}" if line else "" for line in lines]
        return Edit(at, at, "".join(f"{self.newline}{line}" for line in text))

    def is_alone(self, statement: ast.stmt) -> bool:
        """Returns whether no other statement shares a statement's lines."""
        first = self.first_line(statement.lineno)
        last = self.line_starts[statement.end_lineno - 1]
        before = self.data[self.line_starts[first - 1] : self.start(statement)]
        line = self.line(statement.end_lineno).encode()
        rest = line[self.end(statement) - last :].strip()
        return not before.strip() and (not rest or rest.startswith(b"#"))

    def statement_behind(self, statement: ast.stmt, text: str) -> Edit:
        """Returns the edit that adds a statement right after another one."""
        if self.is_alone(statement):
            number = statement.lineno
            return self.behind(statement.end_lineno, [text], self.indent(number))
        at = self.end(statement)
        return Edit(at, at, f"; {text}")

    def is_skipped(self, node: ast.AST) -> bool:
        """Returns whether a line of a node's statement has `# rnncells: skip`."""
        statement = self.statement(node)
        body = getattr(statement, "body", None)
        last = body[0].lineno - 1 if body else statement.end_lineno
        first = min(statement.lineno, node.lineno)
        lines = range(first, max(first, last) + 1)
        return any(SKIP.search(self.line(number)) for number in lines)

    @cached_property
    def _tokens(self) -> list[tokenize.TokenInfo]:
        lines = map(self.line, range(1, len(self.line_starts) + 1))
        return list(tokenize.generate_tokens(lambda: next(lines, "")))

    @cached_property
    def tokens(self) -> list[tuple[int, int, str]]:
        """Start, end and text of all tokens, comments included, without white space."""
        found: list[tuple[int, str]] = []
        text_of: dict[int, str] = {}
        for token in self._tokens:
            if token.string.strip():
                found.append((self._at(token.start, text_of), token.string))
        return [(at, at + len(string.encode()), string) for at, string in found]

    @cached_property
    def code(self) -> list[tuple[int, int, str]]:
        """The tokens without comments, and an empty one at the end."""
        end = len(self.data)
        return [t for t in self.tokens if not t[2].startswith("#")] + [(end, end, "")]

    @cached_property
    def _logical_lines(self) -> dict[int, tuple[int, int]]:
        """The first and last physical line of the logical line of each line."""
        found: dict[int, tuple[int, int]] = {}
        first = None
        for token in self._tokens:
            if token.type == tokenize.NEWLINE:
                lines = first, token.start[0]
                found |= dict.fromkeys(range(first, token.start[0] + 1), lines)
                first = None
            elif first is None and token.type not in BETWEEN_LINES:
                first = token.start[0]
        return found

    def _at(self, place: tuple[int, int], text_of: dict[int, str]) -> int:
        # Positions of tokens are counted in characters.
        row, column = place
        if row not in text_of:
            text_of[row] = self.line(row)
        return self.line_starts[row - 1] + len(text_of[row][:column].encode())

    def tokens_between(self, start: int, end: int) -> Iterator[tuple[int, int, str]]:
        first, last = (bisect_left(self.tokens, (at,)) for at in (start, end))
        yield from self.tokens[first:last]

    def has_comment(self, start: int, end: int) -> bool:
        return any(t[2].startswith("#") for t in self.tokens_between(start, end))


def apply(source: Source, edits: list[Edit]) -> bytes:
    """Returns the bytes of a file after edits, in its own encoding."""
    data = source.data
    parts, at = [], 0
    # At one position insertions come before replacements.
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        assert edit.start >= at, "edits overlap"
        parts += [data[at : edit.start], edit.text.encode()]
        at = edit.end
    parts.append(data[at:])
    return b"".join(parts).decode().encode(source.encoding)


def lines_after(source: Source, edits: list[Edit]) -> list[int]:
    """Returns the number that each line has after edits.

    A deleted line gets the number of the next one. A line inside a replaced span gets
    the number of the corresponding line of the new text, or of its last line.
    """
    numbers, shift = [], 0
    left = deque(sorted(edits, key=lambda edit: (edit.start, edit.end)))
    for number, start in enumerate(source.line_starts, 1):
        # Text inserted at the start of a line comes before the line.
        while left and left[0].end <= start:
            edit = left.popleft()
            shift += _newlines(edit.text.encode())
            shift -= _newlines(source.data[edit.start : edit.end])
        numbers.append(number + shift)
        if left and left[0].start < start:
            lines = _newlines(source.data[left[0].start : start])
            numbers[-1] -= max(0, lines - _newlines(left[0].text.encode()))
    return numbers


def _newlines(data: bytes) -> int:
    return len(NEWLINE.findall(data))

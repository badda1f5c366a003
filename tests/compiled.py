"""Optimized HLO, read from its text: loops, and what is formed in them."""

import math
import re
from dataclasses import dataclass

PRODUCTS = ("dot", "convolution")
COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
# These compute nothing and move nothing.
TRIVIAL = ("bitcast", "constant", "get-tuple-element", "parameter", "tuple")

_HEADER = re.compile(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(
    r"\s+(?:ROOT )?%?[\w.\-]+ = (?P<type>\(.*?\)|\S+) (?P<opcode>[\w\-]+)\("
)
_ARRAY = re.compile(r"\w+\[([\d,]*)\]")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|\w+_computations?)=(\{[^}]*\}|%?[\w.\-]+)"
)
_OPERATION = re.compile(r'op_name="([^"]*)"')
_BODY = re.compile(r"\bbody=%?([\w.\-]+)")
# The Python line that it is traced from: by a cache of programs, one of another run.
_FRAME = re.compile(r" ?stack_frame_id=\d+")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclass(frozen=True)
class Instruction:
    """One line of HLO."""

    opcode: str
    shapes: tuple[tuple[int, ...], ...]  # of the arrays of its result
    text: str  # without the place in Python that it is traced from

    @property
    def sizes(self) -> list[int]:
        """Numbers of elements, the same for an array and its transpose."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def is_trivial(self) -> bool:
        return self.opcode in TRIVIAL

    @property
    def is_product(self) -> bool:
        if self.opcode == "custom-call":
            return re.search("matmul|gemm|conv", self.text, re.IGNORECASE) is not None
        return self.opcode in PRODUCTS

    @property
    def is_collective(self) -> bool:
        """Says whether devices speak to each other; of a start and a done, once."""
        return self.opcode.removesuffix("-start") in COLLECTIVES

    def is_of_weights(self, rows: int) -> bool:
        """Says whether one of its arrays has a size that no state has."""
        return any(size > 1 and size % rows for size in self.sizes)

    @property
    def called(self) -> list[str]:
        """Names of the computations that it calls."""
        called = " ".join(_CALLED.findall(self.text))
        return re.findall(r"[\w.\-]+", called)


@dataclass(frozen=True)
class Loop:
    """A while loop."""

    is_transposed: bool  # whether it is part of a backward pass
    trips: int | None  # how often it runs its body, if that is known
    operations: list[Instruction]  # of its body, without trivial ones; a fusion is one
    inside: list[Instruction]  # those of its body, and of all that it calls

    @property
    def is_innermost(self) -> bool:
        return not any(i.opcode == "while" for i in self.inside)

    @property
    def products(self) -> list[Instruction]:
        return [i for i in self.inside if i.is_product]

    @property
    def collectives(self) -> list[Instruction]:
        return [i for i in self.inside if i.is_collective]

    def of_weights(self, rows: int) -> list[Instruction]:
        """Returns what computes arrays of the size of weights.

        The number of rows is a prime that divides the size of states alone.
        """
        return [i for i in self.inside if i.is_of_weights(rows) and not i.is_trivial]


class Program:
    """A compiled program: the instructions of its computations, and all its loops."""

    def __init__(self, text: str):
        self.computations: dict[str, list[Instruction]] = {}
        current = None
        for line in text.splitlines():
            if (header := _HEADER.match(line)) is not None:
                current = self.computations.setdefault(header[1], [])
            elif line.startswith("}"):
                current = None
            elif current is not None and " = " in line:
                current.append(_read(line))
        self.loops = [self._loop(i) for i in self.instructions if i.opcode == "while"]

    @property
    def instructions(self) -> list[Instruction]:
        return [i for computation in self.computations.values() for i in computation]

    @property
    def innermost(self) -> list[Loop]:
        return [loop for loop in self.loops if loop.is_innermost]

    @property
    def outer(self) -> list[Loop]:
        return [loop for loop in self.loops if not loop.is_innermost]

    @property
    def collectives(self) -> list[Instruction]:
        return [i for i in self.instructions if i.is_collective]

    def _loop(self, instruction: Instruction) -> Loop:
        body = _BODY.search(instruction.text)[1]
        trips = _TRIPS.search(instruction.text)
        operation = _OPERATION.search(instruction.text)
        return Loop(
            operation is not None and "transpose(" in operation[1],
            None if trips is None else int(trips[1]),
            self._operations(body),
            self._inside(body),
        )

    def _operations(self, name: str) -> list[Instruction]:
        found = []
        for instruction in self.computations[name]:
            if instruction.opcode == "call":
                found += self._operations(*instruction.called)
            elif not instruction.is_trivial:
                found.append(instruction)
        return found

    def _inside(self, name: str) -> list[Instruction]:
        found = []
        for instruction in self.computations[name]:
            found.append(instruction)
            for called in instruction.called:
                found += self._inside(called)
        return found


def _read(line: str) -> Instruction:
    found = _INSTRUCTION.match(line)
    assert found is not None, f"this is no instruction of HLO: {line}"
    shapes = tuple(
        tuple(int(n) for n in dims.split(",") if n)
        for dims in _ARRAY.findall(found["type"])
    )
    return Instruction(found["opcode"], shapes, _FRAME.sub("", line.strip()))

"""Optimized HLO, read from its text: loops, and what they form."""

import math
import re
from dataclasses import dataclass
from functools import cached_property

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
# Operations that compute nothing and move nothing.
TRIVIAL = ("bitcast", "constant", "get-tuple-element", "parameter", "tuple")

_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(
    r"\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>\(.*?\)|\S+) (?P<opcode>[\w\-]+)\("
)
_ARRAY = re.compile(r"\w+\[([\d,]*)\]")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)"
    r"=%?([\w.\-]+)"
)
_CALLED_LISTS = re.compile(r"\b(?:calls|branch_computations)=\{([^}]*)\}")
_BODY = re.compile(r"\bbody=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclass(frozen=True)
class Instruction:
    """One line of HLO.

    Attributes:
      opcode: what it does.
      shapes: those of its result: one, or those of a tuple's arrays.
      text: the line.
    """

    opcode: str
    shapes: tuple[tuple[int, ...], ...]
    text: str

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of elements, the same for a transposed or reshaped array."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def is_trivial(self) -> bool:
        return self.opcode in TRIVIAL

    @property
    def is_product(self) -> bool:
        return self.opcode in PRODUCTS or (
            self.opcode == "custom-call"
            and re.search("matmul|gemm|conv", self.text, re.IGNORECASE) is not None
        )

    @property
    def is_collective(self) -> bool:
        """Says whether devices speak; of a pair of start and done, the start does."""
        name = self.opcode.removesuffix("-start")
        return name in COLLECTIVES

    @property
    def called(self) -> list[str]:
        """Names of the computations that it calls."""
        lists = ",".join(_CALLED_LISTS.findall(self.text)).split(",")
        names = _CALLED.findall(self.text) + [name.strip(" %") for name in lists]
        return [name for name in names if name]


@dataclass(frozen=True)
class Loop:
    """A while loop.

    Attributes:
      trips: how often its body runs, None if XLA does not know.
      own: instructions of its body.
      inside: these, and those of all that they call.
    """

    trips: int | None
    own: list[Instruction]
    inside: list[Instruction]

    @property
    def is_innermost(self) -> bool:
        return not any(i.opcode == "while" for i in self.inside)

    @property
    def operations(self) -> list[Instruction]:
        """What the body runs as one operation each, trivial ones left out."""
        return [i for i in self.own if not i.is_trivial]

    @property
    def products(self) -> list[Instruction]:
        return [i for i in self.inside if i.is_product]


class Program:
    """A compiled program.

    Attributes:
      computations: instructions by the name of the computation.
    """

    def __init__(self, text: str):
        self.computations: dict[str, list[Instruction]] = {}
        for line in text.splitlines():
            if (header := _COMPUTATION.match(line)) is not None:
                current = self.computations.setdefault(header[1], [])
            elif (found := _INSTRUCTION.match(line)) is not None:
                shapes = tuple(
                    tuple(int(n) for n in dims.split(",") if n)
                    for dims in _ARRAY.findall(found["type"])
                )
                current.append(Instruction(found["opcode"], shapes, line.strip()))

    @property
    def instructions(self) -> list[Instruction]:
        return [i for computation in self.computations.values() for i in computation]

    @cached_property
    def loops(self) -> list[Loop]:
        whiles = [i for i in self.instructions if i.opcode == "while"]
        loops = []
        for loop in whiles:
            body = _BODY.search(loop.text)[1]
            trips = _TRIPS.search(loop.text)
            loops.append(
                Loop(
                    None if trips is None else int(trips[1]),
                    self.computations[body],
                    self._inside(body),
                )
            )
        return loops

    @property
    def innermost_loops(self) -> list[Loop]:
        return [loop for loop in self.loops if loop.is_innermost]

    @property
    def outer_loops(self) -> list[Loop]:
        return [loop for loop in self.loops if not loop.is_innermost]

    @property
    def outside_loops(self) -> list[Instruction]:
        """What runs once."""
        inside = {id(i) for loop in self.loops for i in loop.inside}
        return [i for i in self.instructions if id(i) not in inside]

    def _inside(self, name: str) -> list[Instruction]:
        found = []
        for instruction in self.computations[name]:
            found.append(instruction)
            for called in instruction.called:
                found.extend(self._inside(called))
        return found

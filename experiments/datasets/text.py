"""Texts as sequences of characters, and their windows for language models.

Stateful truncated backpropagation through time reads a text in parallel streams. Stream
b reads its own contiguous part of the text; each window continues where the previous
window of the stream ended, so a network keeps its carry from window to window.
"""

import hashlib
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.datasets.files import read_bytes
from experiments.settings.rules import ConfigError, require

SHAKESPEARE = "shakespeare9.txt.xz"
# The first character of validation and of test, and the end.
SHAKESPEARE_SPLIT = 1_006_000, 1_062_000, 1_117_815
# The first line that is spoken in each play; the file has no titles.
FIRST_LINES = (
    "Before we proceed any further, hear me speak.",  # Coriolanus
    "Now is the winter of our discontent",  # Richard III
    "Old John of Gaunt, time-honour'd Lancaster,",  # Richard II
    "Two households, both alike in dignity,",  # Romeo and Juliet
    "I wonder how the king escaped our hands.",  # 3 Henry VI
    "If you shall chance, Camillo, to visit Bohemia, on",  # The Winter's Tale
    "Escalus.",  # Measure for Measure
    "I'll pheeze you, in faith.",  # The Taming of the Shrew
    "Boatswain!",  # The Tempest
)
# The twentieth for validation has 16 streams of at least one character.
SHORTEST = 320

Split = Literal["train", "validation", "test"]
Array = jax.Array | np.ndarray


class Part(NamedTuple):
    """A part of a text: the codes of its characters, and the first ones of documents.

    Attributes:
      codes: `(length,)`, unsigned integers.
      documents: positions in `codes` where a document begins, in increasing order.
    """

    codes: np.ndarray
    documents: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Text:
    """A text, its alphabet and its splits.

    Attributes:
      symbols: all characters of the text, sorted. The code of a character is its
        position in this string.
      codes: `(length,)`, the codes of the text, in the smallest unsigned type.
      ranges: `(start, stop)` of each split, in characters.
      documents: positions where a document (a play) begins, in increasing order.
      sha256: of the text in UTF-8, with newlines as line ends.
    """

    symbols: str
    codes: np.ndarray
    ranges: dict[Split, tuple[int, int]]
    documents: tuple[int, ...]
    sha256: str

    def encode(self, text: str) -> np.ndarray:
        """Returns the codes of characters, `(len(text),)`.

        Raises:
          ConfigError: a character is not in the alphabet.
        """
        return encode(text, self.symbols)

    def decode(self, codes: Array) -> str:
        """Returns the characters of codes `(length,)`, each in [0, len(symbols))."""
        return decode(codes, self.symbols)

    def part(self, split: Split) -> Part:
        """Returns a split, preceded by the character before it if there is one.

        With that character as first input, every character of the split is a target.
        (The first character of the training split has no predecessor, so it is no
        target.)
        """
        start, stop = self.ranges[split]
        start = max(start - 1, 0)
        inside = tuple(d - start for d in self.documents if start <= d < stop)
        return Part(self.codes[start:stop], inside)


def shakespeare() -> Text:
    """Returns eight plays of Shakespeare and the first act of a ninth.

    1,117,815 characters, 64 symbols; see `experiments/data/README.md`. The splits are
    0.90, 0.05 and 0.05 of the text. A play begins with the name of the first speaker,
    the line before the play's first spoken line, which occurs once in the text.

    Raises:
      ConfigError: the file is missing or damaged.

    >>> text = shakespeare()
    >>> text.decode(text.codes[:14]), len(text.symbols), len(text.documents)
    ('First Citizen:', 64, 9)
    """
    text = lzma.decompress(read_bytes(SHAKESPEARE)).decode("ascii")
    # The name of a speaker is a line of its own, above the first spoken line.
    starts = (text.index("\n" + line + "\n") for line in FIRST_LINES)
    documents = tuple(text.rfind("\n", 0, start) + 1 for start in starts)
    return _text(text, SHAKESPEARE_SPLIT, documents)


def text_file(path: str | Path) -> Text:
    """Returns the text of a file in UTF-8, as one document.

    The first 90 % of the characters are for training, then 5 % for validation and 5 %
    for test. The alphabet is that of the whole file. Line ends become newlines.

    Raises:
      ConfigError: the file cannot be read, is not UTF-8, or has fewer than 320
        characters.
    """
    try:
        # With or without a byte order mark.
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"The text file {path} cannot be read: {error.strerror}."
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"The text file {path} must be UTF-8, got byte "
            f"{error.object[error.start]:#04x} at position {error.start}; convert it, "
            "for example with `iconv -t UTF-8`."
        ) from None
    length = len(text)
    require(
        length >= SHORTEST,
        f"The text file {path} must have at least {SHORTEST} characters, got {length}.",
    )
    return _text(text, (length * 90 // 100, length * 95 // 100, length), (0,))


def _text(text: str, stops: tuple[int, int, int], documents: tuple[int, ...]) -> Text:
    symbols = "".join(sorted(set(text)))
    train, validation, test = stops
    ranges = {
        "train": (0, train),
        "validation": (train, validation),
        "test": (validation, test),
    }
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    return Text(symbols, encode(text, symbols), ranges, documents, sha256)


def encode(text: str, symbols: str) -> np.ndarray:
    """Returns the codes of characters, `(len(text),)`.

    Args:
      text: the characters.
      symbols: the alphabet, sorted.

    Raises:
      ConfigError: a character is not in the alphabet.

    >>> encode("cab", "abc").tolist()
    [2, 0, 1]
    """
    points = _code_points(text)
    alphabet = _code_points(symbols)
    codes = np.minimum(np.searchsorted(alphabet, points), len(symbols) - 1)
    unknown = np.flatnonzero(alphabet[codes] != points)
    if len(unknown):
        at = unknown[0]
        raise ConfigError(
            f"Character {text[at]!r} at position {at} is not in the alphabet of the "
            f"text; use only these {len(symbols)} characters: {symbols!r}."
        )
    return codes.astype(np.min_scalar_type(len(symbols) - 1))


def decode(codes: Array, symbols: str) -> str:
    """Returns the characters of codes `(length,)`, each in [0, len(symbols))."""
    return "".join(symbols[code] for code in np.asarray(codes).tolist())


def _code_points(text: str) -> np.ndarray:
    # A lone surrogate must be an unknown character, not an error of the encoding.
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


class Window(NamedTuple):
    """A window of every stream.

    Attributes:
      inputs: `(streams, steps)`, int32 codes.
      targets: `(streams, steps)`, int32 codes one character later.
      resets: `(streams, steps)`, true where the carry restarts: at the first character
        of each stream's part and of each document.
    """

    inputs: Array
    targets: Array
    resets: Array


def windows(length: int, streams: int, steps: int) -> int:
    """Returns the number of windows in an epoch of `window`, at least 1.

    Several streams overlap so that every character is read; one stream leaves up to
    `steps` characters at the end of the text.

    Args:
      length: number of characters.
      streams: number of parallel streams, at least 1.
      steps: number of steps in a window, at least 1.

    Raises:
      ConfigError: the text is shorter than one window of every stream.
    """
    _check(length, streams, steps, streams * steps + 1)
    if streams == 1:
        return (length - 1) // steps
    return -(-(length - 1) // (streams * steps))


def window(
    codes: Array,
    n: int | Array,
    streams: int,
    steps: int,
    documents: tuple[int, ...] = (),
) -> Window:
    """Returns window `n` of every stream, for training.

    Each stream reads `windows(length, streams, steps) * steps` characters. The first
    stream starts at the start of the text, the last one ends at its end, and the others
    are evenly spaced between them. After the last window, all streams restart at their
    first one. The function also works under `jax.jit`, with traced `codes` and `n`.

    Args:
      codes: `(length,)`, integers. Put them on the device once, with `jnp.asarray`.
      n: number of the window, at least 0, over all epochs.
      streams: number of parallel streams, at least 1.
      steps: number of steps in a window, at least 1.
      documents: positions in `codes` where a document begins.

    Raises:
      ConfigError: the text is shorter than one window of every stream.

    >>> inputs, targets, resets = window(np.arange(100, 114), 1, streams=2, steps=3)
    >>> inputs.tolist(), targets.tolist()
    ([[103, 104, 105], [107, 108, 109]], [[104, 105, 106], [108, 109, 110]])
    """
    count = windows(len(codes), streams, steps)
    last = len(codes) - 1 - count * steps
    starts = last * np.arange(streams) // max(streams - 1, 1)
    return _slices(codes, n % count, starts, steps, documents)


def evaluation_windows(length: int, streams: int, steps: int) -> int:
    """Returns the number of windows of `evaluation_window`, at least 1.

    Args:
      length: number of characters, more than `streams`.
      streams: number of parallel streams, at least 1.
      steps: number of steps in a window, at least 1.

    Raises:
      ConfigError: the text is too short for the streams.
    """
    _check(length, streams, steps, streams + 1)
    return -(-_share(length, streams) // steps)


def evaluation_window(
    codes: Array,
    n: int | Array,
    streams: int,
    steps: int,
    documents: tuple[int, ...] = (),
) -> tuple[Window, Array]:
    """Returns window `n` of every stream, and which of its steps count.

    In the `evaluation_windows(length, streams, steps)` windows, every character except
    the first is the target of exactly one step that counts. The other steps are
    padding. A network knows nothing of the characters before a stream's part, so one
    stream gives the lowest loss and many streams are faster.

    Args:
      codes: `(length,)`, integers.
      n: number of the window, in [0, `evaluation_windows(length, streams, steps)`).
      streams: number of parallel streams, at least 1.
      steps: number of steps in a window, at least 1.
      documents: positions in `codes` where a document begins.

    Returns:
      The window, and the mask `(streams, steps)`, true at the steps that count.

    Raises:
      ConfigError: the text is too short for the streams.
    """
    length = len(codes)
    evaluation_windows(length, streams, steps)
    share = _share(length, streams)
    within = n * steps + jnp.arange(steps)
    target = 1 + share * jnp.arange(streams)[:, None] + within
    mask = (within < share) & (target < length)
    return _slices(codes, n, share * np.arange(streams), steps, documents), mask


def _share(length: int, streams: int) -> int:
    """Returns the number of targets of a stream, rounded up."""
    return -(-(length - 1) // streams)


def _slices(
    codes: Array,
    n: int | Array,
    starts: np.ndarray,
    steps: int,
    documents: tuple[int, ...],
) -> Window:
    """Returns window `n` of streams that start at `starts`, `(streams,)`."""
    first = jnp.asarray(starts, jnp.int32)[:, None] + n * steps
    positions = first + jnp.arange(steps + 1)  # (streams, steps + 1)
    found = jnp.asarray(codes).at[positions].get(mode="clip").astype(jnp.int32)
    resets = jnp.isin(positions[:, :-1], jnp.asarray(documents, jnp.int32))
    resets = resets.at[:, 0].set(resets[:, 0] | (n == 0))
    return Window(found[:, :-1], found[:, 1:], resets)


def _check(length: int, streams: int, steps: int, least: int) -> None:
    for name, value in ("streams", streams), ("steps", steps):
        require(value >= 1, f"`{name}` must be at least 1, got {value}.")
    require(
        length >= least,
        f"{streams} streams with windows of {steps} steps need a text of at least "
        f"{least} characters, got {length}; use fewer streams or steps.",
    )

"""JSON values with their places in the text."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Strings, brackets, and all other values of JSON.
TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]|[^][{},:"\s]+')


@dataclass(frozen=True)
class JSONValue:
    """A value in a JSON text, and where it starts and ends.

    Attributes:
      value: a dictionary or a list of `JSONValue`; or a string, a number, None, a bool.
      start: index of its first character.
      end: index behind its last character.
    """

    value: Any
    start: int
    end: int


def read_json(text: str) -> JSONValue:
    """Returns the value of a JSON text with the places of all values in it.

    Raises:
      ValueError: the text is not JSON.
    """
    json.loads(text)
    tokens = TOKEN.finditer(text)
    return _read_value(next(tokens), tokens)


def _read_value(first: re.Match, tokens: Iterator[re.Match]) -> JSONValue:
    if first[0] not in ("[", "{"):
        return JSONValue(json.loads(first[0]), *first.span())
    parts = []
    for token in tokens:
        if token[0] in ("]", "}"):
            break
        parts.append(_read_value(token, tokens))
    value: Any = parts
    if first[0] == "{":
        names = [part.value for part in parts[::2]]
        value = dict(zip(names, parts[1::2], strict=True))
    return JSONValue(value, first.start(), token.end())

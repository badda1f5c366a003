"""Warnings at the line of the user."""

import os
import sys
import warnings

import flax
import jax

# Code between the call of a user and a warning; "<string>" is that of dataclasses.
_FILES = (__file__, flax.__file__, jax.__file__)
_INTERNAL = (*(os.path.dirname(file) + os.sep for file in _FILES), "<string>")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line outside of rnncells, Flax and JAX."""
    frame, level = sys._getframe(1), 2
    while frame.f_code.co_filename.startswith(_INTERNAL) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)

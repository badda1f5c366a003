"""The rows of the table of cells, which each cell's equations declare beside them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

import rnncells

BATCH, TIME, FEATURES_IN, FEATURES = 2, 5, 3, 4
EQUATIONS: dict[str, Callable] = {}
# By the name of a class. Every property is tested with the first, and with the second
# the equations and the loops.
ROWS: dict[str, dict] = {}
VARIANTS: dict[str, dict] = {}
# Names of the classes whose carry is multiplied by no weights.
WITHOUT_PRODUCTS: list[str] = []


@dataclass(frozen=True)
class Case:
    """A cell, small.

    Attributes:
      name: of the class, in rnncells and, where it has it, in flax.linen.
      options: arguments of the class.
      input_shape: feature axes of one step's input.
      around: makes the cells in the cell from the options of all cells; None: none.
      runs_in_flax: False where flax.linen has these options, and cannot run them.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    input_shape: tuple[int, ...] = (FEATURES_IN,)
    around: Callable[..., Any] | None = None
    runs_in_flax: bool = True

    @property
    def make(self) -> Callable[..., nn.Module]:
        cls = getattr(rnncells, self.name)
        if self.around is None:
            return partial(cls, **self.options)
        return lambda **options: cls(self.around(**options), **self.options)

    @property
    def make_flax(self) -> Callable[..., nn.Module]:
        return partial(getattr(nn, self.name), **self.options)

    @property
    def in_flax(self) -> bool:
        """Whether flax.linen runs the cell with these options."""
        fields = getattr(getattr(nn, self.name, None), "__dataclass_fields__", ())
        return self.runs_in_flax and {"features", *self.options} <= {*fields}

    @property
    def equations(self) -> Callable:
        """The equations, with the options of the case that they have."""
        equations = EQUATIONS[self.name]
        known = inspect.signature(equations).parameters
        options = {key: value for key, value in self.options.items() if key in known}
        return partial(equations, **options)

    def inputs(self, rng, *leading):
        values = rng.standard_normal((*leading, *self.input_shape))
        return jnp.asarray(values, jnp.result_type(float))


def equations(
    name: str,
    *,
    rows: dict[str, dict] | None = None,
    variants: dict[str, dict] | None = None,
    is_like: str | None = None,
    has_products: bool = True,
    input_shape: tuple[int, ...] = (FEATURES_IN,),
    around: Callable[..., Any] | None = None,
    flax_cannot_run: tuple[str, ...] = (),
    **options: Any,
) -> Callable[[Callable], Callable]:
    """Declares a function as the equations of a cell, and the cells that tests walk.

    Args:
      name: of the cell's class.
      rows: options by the ending of a name: tests of every property have a row for
        each. `input_shape` is that of the row. Default: one row, with `options`.
      variants: the same, for options that change a step and nothing else; tested are
        the step, its sequence and gradients, and equality with Flax. Default: none.
      is_like: a cell that shares all code but that of its step, so that the rows are
        variants. Default: None.
      has_products: whether the carry is multiplied by weights. Default: True.
      input_shape: feature axes of one step's input. Default: (3,).
      around: makes the cells in the cell from the options of all cells. Default: None.
      flax_cannot_run: endings of rows whose options flax.linen has, and cannot run.
      **options: arguments of the class; `features` is 4 unless it is here.
    """

    def cases(rows):
        for ending, row in rows.items():
            row = {"input_shape": input_shape, "features": FEATURES} | options | row
            if "blocks" in row or around:
                del row["features"]
            shape = row.pop("input_shape")
            runs = ending not in flax_cannot_run
            key = f"{name}-{ending}" if ending else name
            yield key, Case(name, row, shape, around, runs)

    def declare(function: Callable) -> Callable:
        EQUATIONS[name] = function
        ROWS[name] = dict(cases(rows or {"": {}}))
        VARIANTS[name] = dict(cases(variants or {}))
        if is_like:
            VARIANTS[name] = ROWS[name] | VARIANTS[name]
            ROWS[name] = {}
        if not has_products:
            WITHOUT_PRODUCTS.append(name)
        return function

    return declare

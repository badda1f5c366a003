"""Checks of an NNX cell for authors of cells."""

from chex import PRNGKey
from flax import nnx

from rnncells import testing
from rnncells.cells.input_spec import InputSpec
from rnncells.nnx.from_linen import FromLinen
from rnncells.nnx.to_linen import linen_of


def check_cell(
    cell: nnx.Module, sample_input: InputSpec, key: PRNGKey | None = None
) -> testing.CellReport:
    """Checks an NNX cell as `rnncells.check_cell` checks a linen cell.

    >>> import rnncells.nnx
    >>> from flax import nnx
    >>> cell = nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))
    >>> rnncells.nnx.check_cell(cell, (2, 3)).ok
    True

    Cells that have variables other than `nnx.Param`, such as random streams and counts,
    are not checked: the report has one finding of the kind `'skipped'`. The parameters
    of the cell do not change.

    Raises:
      TypeError: `cell` is not an NNX cell; `sample_input` is no array, struct or shape.
    """
    if not isinstance(cell, nnx.Module):
        raise TypeError(
            "`cell` of rnncells.nnx.check_cell must be an NNX module, got "
            f"{cell if isinstance(cell, type) else type(cell)}. For a cell of "
            "flax.linen, use rnncells.check_cell."
        )
    linen = cell.linen if isinstance(cell, FromLinen) else linen_of(cell)
    return testing.check_cell(linen, sample_input, key)

"""The cells, one file for each family; import them from `rnncells`."""

from rnncells import _lazy

_lazy.attach(__name__)

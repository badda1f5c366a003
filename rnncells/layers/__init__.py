"""Layers that run cells over sequences; import them from `rnncells`."""

from rnncells import _lazy

_lazy.attach(__name__)

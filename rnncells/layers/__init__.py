"""Layers that run cells over sequences; import them from `rnncells`."""

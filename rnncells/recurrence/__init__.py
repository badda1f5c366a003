"""The engine: pure functions of arrays and pytrees, without Flax."""

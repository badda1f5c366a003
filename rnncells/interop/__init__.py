"""Weights of other libraries, to and from our parameters, as plain arrays.

No other library is imported. Each module converts for what it names: `pytorch`,
`keras`, `haiku`, `equinox`, `jax_rnn`; `files` reads and writes safetensors; `renaming`
moves parameters to other modules that hold the same cells.
"""

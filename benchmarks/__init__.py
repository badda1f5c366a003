"""Benchmarks: our layer beside those of other libraries, in one process."""

"""Benchmarks that compare our layers with those of other libraries, in one process."""

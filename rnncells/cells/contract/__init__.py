"""The contract of a cell: bases, fields and parameters, carries and checks."""

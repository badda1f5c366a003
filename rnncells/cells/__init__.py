"""The cells, a family a file; users import them from `rnncells`."""

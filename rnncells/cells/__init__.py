"""The cells, one file for each family; import them from `rnncells`."""

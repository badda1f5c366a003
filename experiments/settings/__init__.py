"""The fields of a config, its reader, and the options of the command line."""

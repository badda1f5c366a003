"""What may stand in a config, how it is read, and the options of the command line."""

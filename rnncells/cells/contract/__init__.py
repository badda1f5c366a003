"""What a cell is: its base classes, fields and parameters, carries and checks."""

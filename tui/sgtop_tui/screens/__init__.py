"""Pages over the board: help, explain, where."""

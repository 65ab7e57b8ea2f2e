"""Textual widgets: the thin layer between drawn lines and the terminal."""

"""Recordings: what a session took in, kept, so that the same model can be fed with it again."""

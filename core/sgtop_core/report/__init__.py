"""A whole recording in figures: reports as text, JSON and CSV, and what differs between two recordings."""

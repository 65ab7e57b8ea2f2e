"""Switches from sgtop's side: the messages that make a group change, what each flip did, and comparing A and B."""

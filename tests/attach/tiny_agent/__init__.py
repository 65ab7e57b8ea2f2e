"""The smallest agent that keeps the rendezvous of the real one: for tests of the way in, not of what runs there."""

"""GPU counters through nvidia-ml-py, in sgtop's own process; nothing enters the server for them."""

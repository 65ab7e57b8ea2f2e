"""What sgtop reads from the host: servers, processes, attach, kernel scheduling, GPUs, HTTP."""

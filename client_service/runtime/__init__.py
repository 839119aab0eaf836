"""The process that a client runs in: its threads, memory, device and log."""

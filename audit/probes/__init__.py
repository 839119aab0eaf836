"""Live probes: run inside a part of the system, they try forbidden actions."""

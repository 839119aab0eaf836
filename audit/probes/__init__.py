"""Live probes: whoever stands where a part of the system stands tries what that part must not be able to do."""

"""Models of the next item of a session."""

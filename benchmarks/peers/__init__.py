"""What people would use instead, each in an environment of its own, measured beside the project on one machine."""

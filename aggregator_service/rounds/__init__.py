"""Runs and their rounds: state, transitions, uploads, secure messages, and the loop that runs them."""

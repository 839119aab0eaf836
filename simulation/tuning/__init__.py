"""Search of settings by validation: a space a strategy, a federation a trial.

A search can be resumed.
"""

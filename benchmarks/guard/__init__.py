"""Quick check that nothing became about twice as slow or large as committed.

It runs on generated data.
"""

"""Quick check that no time or memory figure doubled since it was committed.

It runs on generated data.
"""

"""Measurements of the paper's tables under one protocol, one folder per table or figure.

`python -m benchmarks table1`, or `make benchmark NAME=table1`; README.md describes the content of a folder.
"""

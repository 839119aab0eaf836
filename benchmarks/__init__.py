"""The paper's tables, measured again under one protocol: one folder a table or figure, one harness for all.

`python -m benchmarks table1`, or `make benchmark NAME=table1`; README.md says what a folder holds.
"""

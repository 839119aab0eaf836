"""A small table, and lines of results as a cell's process would give them."""

from tests.support.benchmark_plan import *

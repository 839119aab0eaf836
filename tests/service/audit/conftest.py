"""Evidence of a small federation, made by the real gate before an aggregator of the test's own; and real services."""

from tests.support.evidence import *

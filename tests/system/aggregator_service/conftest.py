"""A federation in one process: the real app over ASGITransport, and clients that only know numpy."""

from tests.support.aggregator import *

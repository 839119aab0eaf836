"""Simulations that do not take long, and small files of data."""

from tests.support.command_line import *

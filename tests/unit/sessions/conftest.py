"""Shards of sessions that the generator plants."""

from tests.support.session_shards import *

"""Small shards: any three matrices, and four communities of ten users and ten items who like what is theirs."""

from tests.support.client import *

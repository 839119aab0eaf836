"""What tests of several engines hold their outcomes against."""

from tests.support.engine_outcomes import *

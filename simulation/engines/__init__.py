"""The registry of engines: what carries the clients of a simulation. A new one is a file here and a line below."""

from __future__ import annotations

from simulation.engines.plain import conduct_plainly
from simulation.run import simulate_experiment
from simulation.study import Conduct

ENGINES: dict[str, Conduct] = {"services": simulate_experiment, "plain": conduct_plainly}

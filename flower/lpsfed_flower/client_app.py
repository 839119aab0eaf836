"""The client of the app."""

from simulation.flower.client_app import app

__all__ = ["app"]

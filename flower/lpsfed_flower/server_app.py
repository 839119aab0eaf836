"""The server of the app."""

from simulation.flower.server_app import app

__all__ = ["app"]

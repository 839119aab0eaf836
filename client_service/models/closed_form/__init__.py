"""Closed-form scorers of one silo: EASE, least squares, the full spectrum, popularity."""

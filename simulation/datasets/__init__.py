"""A file or folder of interactions, in any of the formats of `formats.py` -> one Dataset with train, valid and test."""

from simulation.datasets.columns import FileOptions
from simulation.datasets.dataset import Dataset
from simulation.datasets.likings import LeastRating
from simulation.datasets.load import load_dataset, read_events, read_titles

__all__ = ["Dataset", "FileOptions", "LeastRating", "load_dataset", "read_events", "read_titles"]

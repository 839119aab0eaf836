"""A file or folder of interactions, in any of the formats below -> one Dataset with train, valid and test.

LightGCN text, MovieLens .dat and u.data, RecBole .inter, CSV and Parquet; each plain or gzipped.
"""

from simulation.datasets.dataset import Dataset
from simulation.datasets.load import load

__all__ = ["Dataset", "load"]

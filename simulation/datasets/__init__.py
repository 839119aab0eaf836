"""A file or folder of interactions, in any of the formats of `formats.py` -> one Dataset with train, valid and test."""

"""Encoders of the client's models, one file each.

Files are named as in shared/method/tensors.py.
"""

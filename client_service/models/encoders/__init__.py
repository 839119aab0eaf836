"""Encoders of the client's models, one file each; its `build` makes the model.

Files are named as in shared/method/tensors.py.
"""

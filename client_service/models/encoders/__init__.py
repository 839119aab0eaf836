"""The client's models, a file for each, named as in shared/method/tensors.py, whose `build` makes one."""

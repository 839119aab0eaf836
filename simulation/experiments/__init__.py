"""Federations for experiments: in one process, as processes, over devices; floors beside them."""

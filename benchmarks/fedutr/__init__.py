"""Measures FedUTR and other item-table strategies with text, as in FedUTR's tables.

The protocol is leave-one-out over all items that a user has not interacted with.
"""

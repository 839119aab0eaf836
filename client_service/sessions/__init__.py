"""Silos whose visitors are anonymous: click sessions, their batches, and the training of models over them."""

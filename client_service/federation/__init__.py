"""A client's part of federated runs: agent, runs, uploads, best model."""

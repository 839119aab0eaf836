"""Code on which client and aggregator must agree: graph, strategies, messages, errors; without torch."""

"""What client and aggregator must agree on: graph, spectrum, parameters, strategies, messages, errors. No torch."""

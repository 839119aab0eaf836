"""Node graphs for experiments: read, generated, divided among silos."""

"""Node graphs of experiments: files, generated graphs, and divisions among silos."""

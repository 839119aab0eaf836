"""Click sessions for experiments: read, filtered, generated, divided among silos or devices."""

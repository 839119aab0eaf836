"""Evidence of each part: probed, read from services, kept as files, gathered into a case."""

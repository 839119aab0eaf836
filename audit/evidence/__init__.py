"""Evidence of each part of a federation: probed, asked for, kept as files, gathered into a case."""

"""A quick run on generated data that fails where something has become about twice as slow or as large as committed."""

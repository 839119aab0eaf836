"""Models of a silo on its disk: files, versions, and refits on all of its data."""

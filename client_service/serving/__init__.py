"""A model at rest -> recommendations; and how it is kept on the disk."""

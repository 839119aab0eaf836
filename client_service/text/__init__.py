"""Encoders convert texts, categories and numbers of items to vectors, the features of items."""

"""Breaks of the boundary, planted on purpose in a running compose federation so that its report must name them."""

"""How well items that nobody has are ranked: hidden items, methods by their text, and what other silos add."""

"""Models of items and sessions: encoders, heads, closed forms, and how they rank."""

"""A run and its rounds: state, transitions, what is taken in, and who carries it on."""

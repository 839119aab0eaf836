"""Server optimisers: the centre of a round's updates -> the step that the state takes, for every strategy."""

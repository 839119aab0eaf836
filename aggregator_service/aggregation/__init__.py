"""A round's updates -> the next state; a state -> the parameters of one client."""

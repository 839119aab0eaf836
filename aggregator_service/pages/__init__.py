"""The operator's page: the run at hand round by round, who is missing, and all that arrived."""

"""HTTP manners that both services share: problem documents, limits, access logs. It knows nothing of the method."""

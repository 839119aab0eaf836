"""What a few bad updates cannot carry away: cut changes, and centres that stand in for the mean."""

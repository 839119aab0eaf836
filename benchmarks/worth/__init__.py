"""`lpsfed worth` beside the truth: forecasts of silos, and what training on the users of other silos gives them."""

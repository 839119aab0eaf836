"""HTTP routes of the client service, and the objects behind them."""

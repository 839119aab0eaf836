"""The client's models, a file for each, named as in shared/method/exchange.py, whose `build` makes one."""

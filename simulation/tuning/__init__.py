"""Settings chosen by validation: a space a strategy, a trial a federation, a search over trials that can be resumed."""

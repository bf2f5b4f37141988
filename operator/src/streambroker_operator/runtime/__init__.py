"""The owner of the broker's state: board, change log, agent commands and rules."""

"""The agent's side of the broker protocol: link, commands, reports, signatures."""

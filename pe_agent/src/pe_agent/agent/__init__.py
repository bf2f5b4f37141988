"""The agent process: log, Flight service, routes, readers, and the link to the broker."""

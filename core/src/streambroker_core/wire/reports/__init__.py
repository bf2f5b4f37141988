"""Reports of agents: rules, side inputs and metrics."""

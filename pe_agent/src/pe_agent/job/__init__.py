"""The job's side: ports, subscribe, publish and the agent's process."""

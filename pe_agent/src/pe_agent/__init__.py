"""The agent and the Spark data source of streambroker."""

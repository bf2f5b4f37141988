"""The client of a broker's REST interface: standard library and `streambroker_core` only."""

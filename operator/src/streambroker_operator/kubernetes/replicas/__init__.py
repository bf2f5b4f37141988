"""Leader election by a Lease, and relays from the other replicas to the leader."""

module streambroker.io/cluster/pause

go 1.24.0

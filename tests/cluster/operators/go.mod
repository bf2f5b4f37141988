module streambroker.io/tests/operators

go 1.24.0

// fetch.sh takes the custom resource definitions from it. go.sum has the sum of the whole module.
require github.com/kubeflow/spark-operator/v2 v2.5.1

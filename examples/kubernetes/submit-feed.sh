#!/bin/sh
# Submit job feed. DRIVER=feed-driver-sidecar.yaml runs its agent as a sidecar; API is the address
# of the API server, for instance https://127.0.0.1:6443.
set -eu
cd "$(dirname "$0")"

kubectl --namespace jobs create configmap feed-program --from-file=feed.py \
  --dry-run=client --output=yaml | kubectl apply --filename -

spark-submit \
  --master "k8s://${API:?the address of the API server}" \
  --deploy-mode cluster \
  --name feed \
  --conf spark.kubernetes.namespace=jobs \
  --conf spark.kubernetes.container.image=streambroker/spark:0.1.0 \
  --conf spark.kubernetes.authenticate.driver.serviceAccountName=feed \
  --conf spark.kubernetes.driver.podTemplateFile="${DRIVER:-feed-driver.yaml}" \
  --conf spark.kubernetes.driver.podTemplateContainerName=spark-kubernetes-driver \
  --conf spark.kubernetes.executor.podTemplateFile=executor.yaml \
  --conf spark.executor.instances=1 \
  local:///opt/job/feed.py

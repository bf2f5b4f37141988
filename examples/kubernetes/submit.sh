#!/bin/sh
# Submit a job: submit.sh feed, or submit.sh alerts; what follows is given to spark-submit. API is the address of the API
# server, for instance https://127.0.0.1:6443. DRIVER=feed-driver-sidecar.yaml runs the agent as a sidecar,
# DRIVER=feed-driver-bucket.yaml keeps its log in a bucket, and EXECUTOR=tls/executor.yaml belongs to the drivers in tls/.
set -eu
cd "$(dirname "$0")"
job=${1:?the job, feed or alerts}
shift

kubectl --namespace jobs create configmap "$job-program" --from-file="$job.py" \
  --dry-run=client --output=yaml | kubectl apply --filename -

# They name the Python of this machine, and would be given to the pods, which have their own.
unset PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON

exec spark-submit \
  --master "k8s://${API:?the address of the API server}" \
  --deploy-mode cluster \
  --name "$job" \
  --conf spark.kubernetes.namespace=jobs \
  --conf spark.kubernetes.container.image=streambroker/spark:0.1.0 \
  --conf "spark.kubernetes.authenticate.driver.serviceAccountName=$job" \
  --conf "spark.kubernetes.driver.podTemplateFile=${DRIVER:-$job-driver.yaml}" \
  --conf spark.kubernetes.driver.podTemplateContainerName=spark-kubernetes-driver \
  --conf "spark.kubernetes.executor.podTemplateFile=${EXECUTOR:-executor.yaml}" \
  --conf spark.executor.instances=1 \
  "$@" \
  "local:///opt/job/$job.py"

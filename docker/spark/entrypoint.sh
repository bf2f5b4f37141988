#!/bin/sh
# What Spark's pods run. Spark calls it with `driver` or `executor` and puts the rest into the
# environment; anything else is run as it is, for instance an agent beside the driver.
set -eu
SPARK_HOME=${SPARK_HOME:-/opt/spark}

case "${1:-}" in
driver)
  shift
  exec tini -s -- "$SPARK_HOME/bin/spark-submit" \
    --deploy-mode client \
    --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
    "$@"
  ;;
executor)
  # Options of the JVM are numbered, and may hold blanks.
  set -- java
  number=0
  while eval "test -n \"\${SPARK_JAVA_OPT_$number+set}\""; do
    eval "option=\$SPARK_JAVA_OPT_$number"
    set -- "$@" "$option"
    number=$((number + 1))
  done
  exec tini -s -- "$@" \
    "-Xms$SPARK_EXECUTOR_MEMORY" \
    "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:${SPARK_EXTRA_CLASSPATH:+$SPARK_EXTRA_CLASSPATH:}$SPARK_HOME/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
  ;;
*)
  exec tini -s -- "$@"
  ;;
esac

#!/bin/bash
# Starts the executor of a pod that a driver made. The driver gives everything by variables (Spark's own image does the
# same in its entrypoint.sh, which PySpark does not bring).
set -euo pipefail

if [ "${1:-}" != executor ]; then
  echo "executor.sh: started by Spark with the argument 'executor', not ${1:-none}" >&2
  exit 2
fi

# SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...: an option each, in their order
options=()
for ((number = 0; ; number++)); do
  name="SPARK_JAVA_OPT_${number}"
  [ -n "${!name+set}" ] || break
  options+=("${!name}")
done

exec "${JAVA_HOME}/bin/java" \
  "${options[@]}" \
  -Xms"${SPARK_EXECUTOR_MEMORY}" -Xmx"${SPARK_EXECUTOR_MEMORY}" \
  -cp "${SPARK_CONF_DIR:-}:${SPARK_HOME}/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "${SPARK_DRIVER_URL}" \
  --executor-id "${SPARK_EXECUTOR_ID}" \
  --cores "${SPARK_EXECUTOR_CORES}" \
  --app-id "${SPARK_APPLICATION_ID}" \
  --hostname "${SPARK_EXECUTOR_POD_IP}" \
  --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID}" \
  --podName "${SPARK_EXECUTOR_POD_NAME}"

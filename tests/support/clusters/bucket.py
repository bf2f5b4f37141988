"""An S3 server as a pod of a node of this machine, for agents that keep their log in a bucket."""

from __future__ import annotations

import os
import shutil

from support.clusters.node import SPARK_USER, Cluster
from support.storage.servers import KEY, PROGRAM

NAMESPACE = "bucket"
_PORT = 7070
_SERVER = f"""\
apiVersion: v1
kind: Namespace
metadata: {{name: {NAMESPACE}}}
---
apiVersion: v1
kind: Service
metadata: {{name: s3, namespace: {NAMESPACE}}}
spec:
  selector: {{app: s3}}
  ports: [{{port: {_PORT}}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: s3, namespace: {NAMESPACE}, labels: {{app: s3}}}}
spec:
  securityContext: {{runAsUser: {SPARK_USER}, runAsGroup: {SPARK_USER}}}
  containers:
    - name: s3
      image: streambroker/spark:0.1.0
      command: [/s3/versitygw, --access, {KEY}, --secret, {KEY}, --port, ":{_PORT}"]
      args: [posix, --sidecar, /s3/meta, /s3/root]
      readinessProbe: {{tcpSocket: {{port: {_PORT}}}, periodSeconds: 1}}
      volumeMounts: [{{name: s3, mountPath: /s3}}]
  volumes: [{{name: s3, hostPath: {{path: "@FOLDER@"}}}}]
"""


def run_bucket(cluster: Cluster) -> dict[str, str]:
    """Run the server with the bucket ``rows``; return the environment of its clients."""
    assert cluster.volumes is not None, "the bucket runs on a node of this machine only"
    folder = cluster.volumes / "s3"
    for part in (folder / "root" / "rows", folder / "meta"):
        part.mkdir(parents=True)
    shutil.copy(PROGRAM, folder / "versitygw")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, SPARK_USER, SPARK_USER)
    cluster.kubectl("apply", "--filename=-", stdin=_SERVER.replace("@FOLDER@", str(folder)))
    cluster.kubectl(
        "wait", "pod/s3", f"--namespace={NAMESPACE}", "--for=condition=Ready", "--timeout=90s"
    )
    return {
        "AWS_ENDPOINT_URL": f"http://s3.{NAMESPACE}.svc:{_PORT}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": KEY,
        "AWS_REGION": "us-east-1",
    }

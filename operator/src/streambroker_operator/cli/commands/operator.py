"""``operator``: run a broker in a cluster."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from importlib.metadata import version
from pathlib import Path
from typing import Any

from streambroker_operator.cli.commands.up import (
    add_broker_options,
    certificate_pair,
    configure_log,
    lineage_target,
    print_line,
    tcp_port,
)
from streambroker_operator.cli.io.errors import OK
from streambroker_operator.cli.io.options import one_of, seconds_between

MAX_DRAIN_S = 600
"""Maximum drain time, in seconds; the grace period of a pod is longer."""
MIN_RATE, MAX_RATE = 0.1, 10_000.0
"""Bounds of a limited rate of status writes, per second."""


def add(commands: Any) -> None:
    """Add the command."""
    run = commands.add_parser("operator", help="run a broker over the resources of a cluster")
    run.add_argument(
        "--feeder",
        default="kopf",
        type=one_of("kopf", "reflector"),
        metavar="kopf|reflector",
        help="implementation that watches the API server",
    )
    run.add_argument(
        "--watch-namespaces", default="own", metavar="own|A,B|*", help="default own; * for all"
    )
    run.add_argument("--lease-name", default="streambroker", metavar="NAME")
    run.add_argument("--secret-name", default="streambroker", metavar="NAME")
    run.add_argument(
        "--make-secret", action="store_true", help="create the Secret of --secret-name if missing"
    )
    run.add_argument("--host", default="127.0.0.1")
    run.add_argument("--port", type=tcp_port, default=8470, help="of REST; default 8470")
    run.add_argument(
        "--metrics-port", type=tcp_port, default=8471, help="of probes and metrics; default 8471"
    )
    run.add_argument(
        "--drain",
        type=seconds_between(0, MAX_DRAIN_S),
        default=3.0,
        metavar="SECONDS",
        help="seconds for which it still serves after SIGTERM; default 3",
    )
    run.add_argument(
        "--statuses-per-s",
        type=_parse_rate,
        default=0.0,
        metavar="RATE",
        help="statuses written per second at most; default 0: as fast as the API server answers",
    )
    run.add_argument("--tls-cert", type=Path, metavar="FILE")
    run.add_argument("--tls-key", type=Path, metavar="FILE")
    run.add_argument(
        "--webhook", default="", metavar="NAME", help="serve this ValidatingWebhookConfiguration"
    )
    run.add_argument("--webhook-secret", default="streambroker-webhook", metavar="NAME")
    run.add_argument(
        "--webhook-port", type=tcp_port, default=8473, help="of the webhook; default 8473"
    )
    add_broker_options(run)
    run.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from streambroker_operator.broker import serve
    from streambroker_operator.kubernetes.broker import ClusterBroker, Settings
    from streambroker_operator.kubernetes.client.kubeconfig import find_access, parse_namespaces
    from streambroker_operator.rest.guard.rate_limits import RateLimits
    from streambroker_operator.security import audit_log as audit

    certificate = certificate_pair(options)
    configure_log(options)
    audit.log_to_stderr()
    access = find_access(os.environ)
    pod_ip = os.environ.get("POD_IP", "")
    settings = Settings(
        access=access,
        release=version("streambroker-operator"),
        namespaces=parse_namespaces(options.watch_namespaces, access.namespace),
        feeder=options.feeder,
        pod=os.environ.get("POD_NAME") or socket.gethostname(),
        address=_probes_url(pod_ip, options.metrics_port),
        lease_name=options.lease_name,
        secret_name=options.secret_name,
        make_secret=options.make_secret,
        host=options.host,
        port=options.port,
        metrics_port=options.metrics_port,
        certificate=certificate,
        webhook=options.webhook,
        webhook_secret=options.webhook_secret,
        webhook_port=options.webhook_port,
        limits=RateLimits(**dict(options.limit)),
        statuses_per_s=options.statuses_per_s,
        page=not options.no_ui,
        peek=not options.no_peek,
        lineage=lineage_target(options),
        quotas=options.quotas,
        drain_s=options.drain,
    )
    broker = ClusterBroker(settings)
    asyncio.run(
        serve(
            broker,
            lambda url: print_line(
                options,
                f"streambroker listening on {url}, probes and metrics on {broker.probes_url}",
            ),
        )
    )
    return OK


def _parse_rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if rate != 0 and not MIN_RATE <= rate <= MAX_RATE:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither 0 nor a number from {MIN_RATE:g} to {MAX_RATE:g}"
        )
    return rate


def _probes_url(ip: str, port: int) -> str:
    if not ip:
        return ""
    return f"http://[{ip}]:{port}" if ":" in ip else f"http://{ip}:{port}"

"""Files that are made from others are up to date, and what goes into images fits together."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.kubernetes import charts

FILES = ("exports", "imports")


def documents(path: Path) -> list[charts.Object]:
    return [each for each in yaml.load_all(path.read_text(), charts.Strict) if each is not None]


def test_what_is_made_from_other_files_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, charts.ROOT / "charts/generate.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", FILES)
def test_the_charts_crds_are_those_of_the_repository_and_are_kept(name: str) -> None:
    source = yaml.safe_load((charts.ROOT / f"crds/{name}.yaml").read_text())
    made = charts.one(charts.objects(), "CustomResourceDefinition", f"{name}.streambroker.io")
    assert made["spec"] == source["spec"]
    assert made["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_the_one_file_has_the_objects_of_an_install_and_no_key() -> None:
    values = {"key": {"create": False, "byBroker": True}, "agentTls": {"mode": "off"}}
    made = charts.objects(values, name="streambroker", namespace="streambroker")
    installed = {charts.key_of(x): x for x in made if x["kind"] != "Pod"}
    found = {charts.key_of(x): x for x in documents(charts.ROOT / "deploy/base/streambroker.yaml")}
    namespace = ("Namespace", "", "streambroker")
    assert found.pop(namespace) == {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "streambroker"},
    }
    assert found == installed


def test_definitions_and_accounts_come_before_what_needs_them() -> None:
    kinds = [each["kind"] for each in documents(charts.ROOT / "deploy/base/streambroker.yaml")]
    assert kinds[:3] == ["Namespace", "CustomResourceDefinition", "CustomResourceDefinition"]
    assert kinds.index("ServiceAccount") < kinds.index("Deployment")


def test_the_chart_names_the_release_of_the_distributions() -> None:
    chart = yaml.safe_load((charts.CHART / "Chart.yaml").read_text())
    for name in ("core", "operator", "pe_agent"):
        text = (charts.ROOT / name / "pyproject.toml").read_text()
        found = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
        assert found is not None
        assert found[1] == chart["appVersion"]
    makefile = (charts.ROOT / "Makefile").read_text()
    names = set(re.findall(r"-t (streambroker/[a-z]+):", makefile))
    assert names == {"streambroker/broker", "streambroker/spark"}
    container = charts.one(charts.objects(), "Deployment")["spec"]["template"]["spec"]["containers"]
    tagged = f"{charts.REGISTRY}/streambroker/broker:{chart['appVersion']}"
    assert container[0]["image"] == tagged


# ---- images ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["broker", "spark"])
def test_an_image_takes_only_what_its_context_lets_in(name: str) -> None:
    text = (charts.ROOT / f"docker/{name}/Dockerfile").read_text()
    let_in = [
        line.removeprefix("!")
        for line in (charts.ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    sources = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
        for source in [word for word in line.split() if not word.startswith("--")][:-1]
    ]
    assert sources
    for source in sources:
        assert any(Path(source).match(pattern) for pattern in let_in), source
        assert source.startswith("dist/") or (charts.ROOT / source).exists(), source


def test_images_run_as_the_users_that_manifests_name() -> None:
    def user(name: str) -> str:
        text = (charts.ROOT / f"docker/{name}/Dockerfile").read_text()
        users: list[str] = re.findall(r"^USER (\d+):\d+$", text, re.MULTILINE)
        return users[-1]

    values = yaml.safe_load((charts.CHART / "values.yaml").read_text())
    assert user("broker") == str(values["runAsUser"])
    (driver,) = documents(charts.ROOT / "examples/kubernetes/feed-driver.yaml")
    assert user("spark") == str(driver["spec"]["securityContext"]["runAsUser"])


@pytest.mark.parametrize(
    ("image", "distributions", "extra"),
    [("broker", ["core", "operator"], "kubernetes"), ("spark", ["core", "pe_agent"], "spark")],
)
def test_an_image_has_what_its_distributions_need(
    image: str, distributions: list[str], extra: str
) -> None:
    locked = set(re.findall(r"^([a-z0-9-]+)==", requirements(image), re.MULTILINE))
    wanted: set[str] = set()
    for name in distributions:
        text = (charts.ROOT / name / "pyproject.toml").read_text()
        for section in re.findall(rf"^(?:dependencies|{extra}) = \[(.*?)\]$", text, re.M | re.S):
            wanted |= set(re.findall(r'"([a-z0-9-]+)', section))
    assert len(wanted) > 3
    assert wanted - {"streambroker-core"} <= locked


@pytest.mark.parametrize("image", ["broker", "spark"])
def test_an_image_has_the_versions_that_are_tested(image: str) -> None:
    tested = dict(versions(requirements("dev")))
    shared = {name: v for name, v in versions(requirements(image)) if name in tested}
    assert len(shared) > 5
    assert shared == {name: tested[name] for name in shared}


def versions(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE)
    return found


def requirements(name: str) -> str:
    return (charts.ROOT / f"requirements/{name}.txt").read_text()


# ---- the entry point of Spark's pods ---------------------------------------------------------

SHOW = '#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n'
EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_EXECUTOR_POD_NAME": "feed-exec-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
}


def run_entrypoint(home: Path, *arguments: str, **environment: str) -> list[str]:
    """Run the entry point with an init that shows what it is given; return that."""
    tool = home / "tini"
    tool.write_text(SHOW)
    tool.chmod(0o755)
    done = subprocess.run(
        [charts.ROOT / "docker/spark/entrypoint.sh", *arguments],
        env={"PATH": f"{home}:/usr/bin:/bin", "SPARK_HOME": "/opt/spark", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    shown = done.stdout.splitlines()
    assert shown[:3] == [str(tool), "-s", "--"]
    return shown[3:]


def test_a_driver_is_spark_submit_in_client_mode_at_its_pods_address(tmp_path: Path) -> None:
    given = [
        "--properties-file",
        "/opt/spark/conf/spark.properties",
        "local:///opt/job/feed.py",
        "a b",
    ]
    shown = run_entrypoint(tmp_path, "driver", *given, SPARK_DRIVER_BIND_ADDRESS="10.0.0.5")
    assert shown == [
        "/opt/spark/bin/spark-submit",
        "--deploy-mode",
        "client",
        "--conf",
        "spark.driver.bindAddress=10.0.0.5",
        *given,
    ]


def test_an_executor_gets_the_options_of_the_jvm_in_order_and_whole(tmp_path: Path) -> None:
    options = [f"-Dnumber={number} of 12" for number in range(12)]
    numbered = {f"SPARK_JAVA_OPT_{number}": option for number, option in enumerate(options)}
    shown = run_entrypoint(tmp_path, "executor", **numbered, **EXECUTOR)
    assert shown[:13] == ["java", *options]
    assert shown[13:15] == ["-Xms1024m", "-Xmx1024m"]


def test_an_executor_learns_who_it_is(tmp_path: Path) -> None:
    shown = run_entrypoint(tmp_path, "executor", SPARK_EXTRA_CLASSPATH="/opt/extra/*", **EXECUTOR)
    assert shown[0] == "java"
    assert shown[shown.index("-cp") + 1] == "/opt/spark/conf:/opt/extra/*:/opt/spark/jars/*"
    backend = shown.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    reported = dict(zip(shown[backend + 1 :: 2], shown[backend + 2 :: 2], strict=True))
    assert reported == {
        "--driver-url": EXECUTOR["SPARK_DRIVER_URL"],
        "--executor-id": "1",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.7",
        "--resourceProfileId": "0",
        "--podName": "feed-exec-1",
    }


def test_anything_else_is_run_as_it_is(tmp_path: Path) -> None:
    command = ["python3", "-m", "pe_agent.agent", "--home=/a b"]
    assert run_entrypoint(tmp_path, *command) == command


def test_an_executor_that_does_not_learn_who_it_is_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run_entrypoint(tmp_path, "executor")
    assert "SPARK_EXECUTOR_MEMORY" in failed.value.stderr

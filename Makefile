# On a new machine, `make test` installs everything, checks the code and runs the tests.

comma  := ,
PYTHON ?= python3
# The Pythons that `make wheel` builds for and `make try-wheel` installs into.
PYTHONS ?= $(PYTHON)
VENV   := .venv
BIN    := $(VENV)/bin
PURE   := build/pure
PEERS  := interop/bin/nsqd
STATIC := src/nsqx/nsqadmin/static
# The name changes when npm is installed, so the page is built then.
PAGE   := build/.page-$(if $(shell command -v npm),with,without)-npm
SOURCE := $(shell find src -name '*.py' -o -name '*.pxd') setup.py pyproject.toml
UI     := $(shell find ui -path ui/node_modules -prune -o -type f -print)
# Delete the copies of setuptools: a module removed from src must not stay in build.
STALE  := find build -path 'build/lib*' -type f ! -name '*.so' -delete 2>/dev/null || true
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

# The tests wait for daemons and timers about half of the time, so three processes keep two cores busy.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 3 / 2)
# Run all tests of a file in one process, so its Spark session or daemon starts once.
PARALLEL := --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder

# Spark needs Java 17 or newer. Everything else works without Java.
JAVA   = $(shell command -v "$${JAVA_HOME:+$$JAVA_HOME/bin/}java")
EXTRAS = server,admin,test,check,docs,peers$(if $(JAVA),$(comma)pipeline$(comma)connect$(comma)declarative)

.PHONY: setup system ui check check-page test ci ci-other-builds pure log interop faults fuzz soak bench wheel try-wheel extras image chart sbom docs up demo clean

## Install everything, check the code and run all tests that this machine can run.
test: system
	@$(MAKE) --no-print-directory --jobs=2 check interop
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

## Run all checks of a change: those of `make test`, then the daemons with topic logs, and unit tests on the uncompiled package.
ci:
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory ci-other-builds

# Integration tests that are the same with topic logs: they use no nsqd, name the store themselves, or only connect.
SAME_WITH_LOGS := access bench browser_requests client_numbered client_reader context_command debug_log demo dual_stack \
  faststream_behaviour faststream_broker faststream_tools http_client http_server https_handshakes log_limits \
  log_positions log_read login_attempts nsqadmin_alerts nsqadmin_clusters nsqadmin_history nsqadmin_logs nsqlookupd \
  numbered_publishes secured_http served_openapi shells taskiq_broker tls_files topic_conversion topic_rules \
  transactions unusual_paths up upgrade

# The daemons with topic logs, and the rules and the models on the uncompiled package.
ci-other-builds:
	@$(MAKE) --no-print-directory log ARGS="$(SAME_WITH_LOGS:%=--ignore=tests/integration/test_%.py)"
	@$(MAKE) --no-print-directory pure ARGS="tests/unit tests/protocol tests/faults/test_model_log.py"

## Install the system packages that the tests need.
system:
	@tests/system-packages

## Create the virtual environment and install the compiled package, as users get it.
setup: $(VENV)/.installed

$(VENV)/.tools: constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nsqx needs Python 3.11 or newer: set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt setuptools wheel Cython
	@touch $@

# Reinstall if the extras changed, for example because Java was installed.
$(VENV)/.extras: $(VENV)/.tools always
	@echo '$(EXTRAS)' | cmp -s - $@ || echo '$(EXTRAS)' > $@

# With --no-compile, Python compiles a module when it is first imported. Most modules never are.
$(VENV)/.packages: $(VENV)/.extras constraints.txt tests/requirements.py
	$(BIN)/python tests/requirements.py $(EXTRAS) > $(VENV)/requirements.txt
	$(PIP) install --constraint constraints.txt --no-compile --requirement $(VENV)/requirements.txt
	@touch $@

build/.compiled: $(VENV)/.tools $(SOURCE) $(PAGE) constraints.txt
	$(STALE)
	rm -rf build/compiled
	@echo "building the package; compiling takes two or three minutes"
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir build/compiled .
	@touch $@

$(VENV)/.installed: $(VENV)/.packages build/.compiled
	$(PIP) install --no-deps --no-compile --force-reinstall build/compiled/*.whl
	@touch $@

## Build nsqadmin's page into the package.
ui: $(PAGE)

$(PAGE): $(UI)
	@if ! command -v npm >/dev/null; then echo "npm is not installed: nsqadmin will serve only its API, without the page"; \
	elif ! node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)'; then \
	  echo "Node is older than 20.19: nsqadmin will serve only its API, without the page"; \
	else echo "building nsqadmin's page"; \
	  cd ui && npm install --silent --no-package-lock --no-audit --no-fund && npm run --silent build; fi
	@mkdir -p $(dir $@) && touch $@

## Run the linters and the type checker.
check: check-page setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check-page: $(PAGE)
	@if [ -d ui/node_modules ]; then cd ui && npm run --silent check; fi

## Run the tests on the uncompiled package.
pure: setup
	rm -rf $(PURE)
	NSQX_PURE=1 $(PIP) install --no-deps --no-build-isolation --target $(PURE) .
	PYTHONPATH=$(PURE) $(BIN)/python -m pytest $(PARALLEL) $(ARGS)

## Run the tests of the protocol and of the daemons with topic logs.
log: setup
	NSQX_TEST_STORE=log $(BIN)/python -m pytest $(PARALLEL) tests/protocol tests/integration $(ARGS)

## Build the Go daemons, utilities and bench programs, and install the Node client, for tests and measurements.
interop: $(PEERS) tests/interop/nsqjs/node_modules

$(PEERS): interop/go.mod interop/go.sum
	@if command -v go >/dev/null; then echo "building the Go peers"; \
	  cd interop && go build -o bin/ github.com/nsqio/nsq/apps/... github.com/nsqio/nsq/bench/... && touch bin/nsqd; \
	else echo "Go is not installed: tests against the Go daemons will be skipped"; fi

tests/interop/nsqjs/node_modules: tests/interop/nsqjs/package.json
	@if command -v npm >/dev/null; then \
	  cd tests/interop/nsqjs && npm install --silent --no-package-lock --no-audit --no-fund && touch node_modules; \
	else echo "npm is not installed: tests with nsqjs will be skipped"; fi

## Run every fault of docs/reliability.md on Go's nsqd and on nsqx's, then kill nsqds with topic logs, Spark drivers, receivers, executors and archives.
faults: setup interop
	$(BIN)/python tests/faults/report.py $(ARGS)
	@for durability in fsync write; do $(BIN)/python tests/faults/kill_log.py --durability=$$durability || exit 1; done
	@if command -v java >/dev/null; then for nsqd in nsqx go; do \
	  $(BIN)/python tests/faults/kill_spark.py --nsqd=$$nsqd && $(BIN)/python tests/faults/kill_archive.py --nsqd=$$nsqd || exit 1; \
	done; $(BIN)/python tests/faults/kill_sink.py || exit 1; else echo "Java is not installed: the Spark faults were skipped"; fi

## Send mutated input to parsers and daemons for ten minutes. ARGS='--minutes 1' shortens it.
fuzz: setup interop
	-$(PIP) install --constraint constraints.txt atheris
	$(BIN)/python tests/fuzz/run.py $(ARGS)

## Run 5,000 connections for ten minutes and account for every message.
soak: setup
	$(BIN)/python tests/soak/run.py $(ARGS)

## Compare nsqx with Go's nsqd. tests/bench/compare_durability.py compares the log store with Go, JetStream and Redis too.
bench: setup interop
	$(BIN)/nsqx bench compare --peer $(PEERS) $(ARGS)

## Build a wheel for each of PYTHONS, the pure wheel and the source package. Needs the network, a C compiler, and npm for the page.
wheel: $(PAGE)
	rm -rf dist
	$(PYTHON) release/build.py $(addprefix --python=,$(PYTHONS)) --pure --sdist $(if $(TWICE),--twice)

## Install what `make wheel` built into empty environments, and run a cluster in each.
try-wheel:
	$(PYTHON) release/try_wheel.py $(addprefix --python=,$(PYTHONS)) $(ARGS)

## Install the wheel with each extra into an empty environment, and try every feature there. Needs the network, and Java for Spark.
extras: wheel
	$(PYTHON) tests/packaging/extras.py $(ARGS)

## Build the container image and test it, with SPARK=1 also the one with Spark. Needs podman and buildah; IMAGE_FLAGS=--debian makes the base images with mmdebstrap.
image: setup
	@tests/containers/needed podman buildah
	rm -rf build/image
	$(PYTHON) release/build.py --sdist --to build/image/source
	$(PYTHON) release/build.py --pure --to build/image/pure
	$(PYTHON) release/image.py --tag nsqx --packages $(or $(PACKAGES),build/image/source) $(IMAGE_FLAGS)
	$(PYTHON) release/image.py --tag nsqx:pure --packages build/image/pure $(IMAGE_FLAGS)
	$(if $(SPARK),$(PYTHON) release/image.py --spark --packages $(or $(PACKAGES),build/image/source) $(IMAGE_FLAGS))
	$(BIN)/python -m pytest -o python_files='check_*.py' $(ARGS) tests/containers

## Check the Helm chart. Needs Go and the network: helm is built, and the schemas of Kubernetes are downloaded.
chart: setup
	@tests/containers/needed go
	GOBIN=$(CURDIR)/build/chart go install helm.sh/helm/v3/cmd/helm@v3.16.4
	HELM=build/chart/helm KUBERNETES_SOURCE=$$(tests/chart/source k8s.io/kubernetes@v1.31.3) \
	PROMETHEUS_OPERATOR_SOURCE=$$(tests/chart/source github.com/prometheus-operator/prometheus-operator@v0.78.2) \
	$(BIN)/python -m pytest -o python_files='check_*.py' $(ARGS) tests/chart

## Write the bill of materials and the list of licences to dist/.
sbom: setup $(PAGE)
	$(BIN)/python release/bill_of_materials.py --sbom dist/nsqx.cdx.json --licences dist/licences.md

## Build the manual as a site in build/site.
docs: setup
	$(BIN)/mkdocs build --strict

## Run a whole cluster in one process.
up: setup
	$(BIN)/nsqx up $(ARGS)

## Run a cluster, a stream of clicks and a Spark pipeline, then check the counts. HOLD=1 keeps it running.
demo: java setup
	$(BIN)/python examples/demo/run.py $(if $(HOLD),--hold) $(ARGS)

.PHONY: java always
java:
	@tests/system-packages java || { echo "The demo runs Spark, which needs Java 17 or newer: install it, or start the cluster alone with make up"; exit 1; }

## Delete everything that was built or installed.
clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis ui/node_modules $(STATIC)

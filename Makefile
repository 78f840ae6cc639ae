# One-word targets; `make test` is all that a new machine needs.

comma  := ,
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PURE   := build/pure
PEERS  := interop/bin/nsqd
STATIC := src/nsqx/nsqadmin/static
# Built again once npm is there.
PAGE   := build/.page-$(if $(shell command -v npm),with,without)-npm
SOURCE := $(shell find src -name '*.py' -o -name '*.pxd') setup.py pyproject.toml
UI     := $(shell find ui -path ui/node_modules -prune -o -type f -print)
# What setuptools copied before: a module that is gone from src must not live on there.
STALE  := find build -path 'build/lib*' -type f ! -name '*.so' -delete 2>/dev/null || true
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

# A file of tests stays on one core, so that its session or daemon is started once.
PARALLEL := --numprocesses=auto --dist=loadfile --no-loadscope-reorder

# Spark needs Java 17 or newer; without it everything else works.
JAVA   = $(shell command -v "$${JAVA_HOME:+$$JAVA_HOME/bin/}java")
EXTRAS = test,check,docs,peers$(if $(JAVA),$(comma)pipeline$(comma)declarative)

.NOTPARALLEL:
.PHONY: setup system ui check test pure interop faults fuzz soak bench wheel docs up demo clean

test: system setup check interop
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

## Programs that tests run and pip cannot bring.
system:
	@tests/system-packages

## The environment, with the package in it compiled as a user gets it.
setup: $(VENV)/.installed

$(VENV)/.tools: constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nsqx needs Python 3.11 or newer: set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt setuptools wheel Cython
	@touch $@

# Other extras than at the last time: Java has come.
$(VENV)/.extras: $(VENV)/.tools always
	@echo '$(EXTRAS)' | cmp -s - $@ || echo '$(EXTRAS)' > $@

$(VENV)/.installed: $(VENV)/.extras $(SOURCE) $(PAGE) constraints.txt
	$(STALE)
	@echo "installing; to compile takes two or three minutes"
	$(PIP) install --constraint constraints.txt --no-build-isolation '.[$(EXTRAS)]'
	@touch $@

## nsqadmin's page, built into the package.
ui: $(PAGE)

$(PAGE): $(UI)
	@if ! command -v npm >/dev/null; then echo "npm is not installed: nsqadmin will serve its API and no page"; \
	elif ! node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)'; then \
	  echo "Node is older than 20.19: nsqadmin will serve its API and no page"; \
	else echo "building nsqadmin's page"; \
	  cd ui && npm install --silent --no-package-lock --no-audit --no-fund && npm run --silent build; fi
	@mkdir -p $(dir $@) && touch $@

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if [ -d ui/node_modules ]; then cd ui && npm run --silent check; fi

## The same tests on the same code, uncompiled.
pure: setup
	rm -rf $(PURE)
	NSQX_PURE=1 $(PIP) install --no-deps --no-build-isolation --target $(PURE) .
	PYTHONPATH=$(PURE) $(BIN)/python -m pytest $(PARALLEL) $(ARGS)

## The Go daemons, utilities and bench programs, and the Node client, to test and measure against.
interop: $(PEERS) tests/interop/nsqjs/node_modules

$(PEERS): interop/go.mod interop/go.sum
	@if command -v go >/dev/null; then echo "building the Go peers"; \
	  cd interop && go build -o bin/ github.com/nsqio/nsq/apps/... github.com/nsqio/nsq/bench/... && touch bin/nsqd; \
	else echo "Go is not installed: tests against the Go daemons will be skipped"; fi

tests/interop/nsqjs/node_modules: tests/interop/nsqjs/package.json
	@if command -v npm >/dev/null; then \
	  cd tests/interop/nsqjs && npm install --silent --no-package-lock --no-audit --no-fund && touch node_modules; \
	else echo "npm is not installed: tests with nsqjs will be skipped"; fi

## Every fault of the table on Go nsqd and on this one; then Spark drivers, receivers, executors and archives killed.
faults: setup interop
	$(BIN)/python tests/faults/report.py $(ARGS)
	@if command -v java >/dev/null; then for nsqd in nsqx go; do \
	  $(BIN)/python tests/faults/kill_spark.py --nsqd=$$nsqd && $(BIN)/python tests/faults/kill_archive.py --nsqd=$$nsqd || exit 1; \
	done; else echo "Java is not installed: nothing of Spark was killed"; fi

## Readers and daemons under mutated input, for ten minutes: ARGS='--minutes 1'.
fuzz: setup interop
	-$(PIP) install --constraint constraints.txt atheris
	$(BIN)/python tests/fuzz/run.py $(ARGS)

## 5,000 connections and every message accounted for, for ten minutes.
soak: setup
	$(BIN)/python tests/soak/run.py $(ARGS)

bench: setup interop
	$(BIN)/nsqx bench compare --peer $(PEERS) $(ARGS)

## Both wheels, the page in them.
wheel: setup
	rm -rf dist
	$(STALE)
	$(PIP) wheel --no-build-isolation --no-deps --wheel-dir dist .
	NSQX_PURE=1 $(PIP) wheel --no-build-isolation --no-deps --wheel-dir dist .
	@ls dist

## The manual as a site in build/site.
docs: setup
	$(BIN)/mkdocs build --strict

up: setup
	$(BIN)/nsqx up $(ARGS)

## A cluster, a stream of clicks, a Spark pipeline and a final count check; HOLD=1 keeps it running.
demo: java setup
	$(BIN)/python examples/demo/run.py $(if $(HOLD),--hold) $(ARGS)

.PHONY: java always
java:
	@tests/system-packages java || { echo "The demo runs Spark, which needs Java 17 or newer: install it, or start the cluster alone with make up"; exit 1; }

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis ui/node_modules $(STATIC)

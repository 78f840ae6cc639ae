# One-word targets; `make test` is all that a new machine needs.

comma  := ,
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PURE   := build/pure
PEERS  := interop/bin/nsqd
SOURCE := $(shell find src -name '*.py' -o -name '*.pxd') setup.py pyproject.toml
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

# SPARK=1 adds pyspark, and so the tests of the Spark side, which is still being built and needs Java 17 or newer.
EXTRAS := test,check,peers$(if $(SPARK),$(comma)spark)

.PHONY: setup check test pure interop faults bench up clean

test: setup check interop
	$(BIN)/python -m pytest $(ARGS)

## The environment, with the package in it compiled as a user gets it.
setup: $(VENV)/.installed

$(VENV)/.tools: constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nsqx needs Python 3.11 or newer: set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt setuptools wheel Cython
	@touch $@

$(VENV)/.installed: $(VENV)/.tools $(SOURCE) constraints.txt
	$(PIP) install --constraint constraints.txt --no-build-isolation '.[$(EXTRAS)]'
	@touch $@

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

## The same tests on the same code, uncompiled.
pure: setup
	rm -rf $(PURE)
	NSQX_PURE=1 $(PIP) install --no-deps --no-build-isolation --target $(PURE) .
	PYTHONPATH=$(PURE) $(BIN)/python -m pytest $(ARGS)

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

## Every fault of the table on Go nsqd and on this one.
faults: setup interop
	$(BIN)/python tests/faults/report.py $(ARGS)

bench: setup interop
	$(BIN)/python tests/bench/compare_brokers.py $(ARGS)

up: setup
	$(BIN)/nsqx up $(ARGS)

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

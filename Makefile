# `make serve` and `make test` are all a fresh machine needs; both share one .venv.

PYTHON ?= python3
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin

PROJECT := pyproject.toml
RUNTIME_LOCK := requirements/runtime.lock
TEST_LOCK := requirements/test.lock

# Stamps: each is newer than all that it was made from.
CREATED := $(VENV)/.created
SERVES := $(VENV)/.serves
TESTS := $(VENV)/.tests

PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-input
INSTALL_PROJECT := $(PIP_INSTALL) --quiet --no-deps --no-build-isolation --editable .

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL: # one environment, one pip at a time

.PHONY: help
help: ## this list
	@sed -nE 's/^([a-z.-]+):.*## /  make \1\t/p' Makefile | expand -t 20

.PHONY: serve
serve: $(SERVES) ## the service on port $(PORT), with the embedded checkpoint
	$(BIN)/eulerlora serve --port $(PORT)

.PHONY: test
test: $(TESTS) ## the tests that can run on this machine, but for the slow ones
	$(BIN)/python -m pytest -m "not slow"

.PHONY: test-all
test-all: $(TESTS) ## the slow tests too
	$(BIN)/python -m pytest

.PHONY: lint
lint: $(TESTS) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: check
check: lint test ## before a commit: lint, then test

.PHONY: .venv
.venv: $(SERVES) ## the environment that `serve` runs in

$(CREATED):
	@$(PYTHON) -c 'import sys; v = sys.version_info; \
	  (3, 11) <= v < (3, 14) or sys.exit(f"PYTHON: wanted Python 3.11 to 3.13, $(PYTHON) is {v.major}.{v.minor}")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The locks agree on what they share, so that either may be installed over the other.
$(SERVES): $(CREATED) $(PROJECT) $(RUNTIME_LOCK)
	$(PIP_INSTALL) --require-hashes --requirement $(RUNTIME_LOCK)
	$(INSTALL_PROJECT)
	@touch $@

$(TESTS): $(CREATED) $(PROJECT) $(TEST_LOCK)
	$(PIP_INSTALL) --require-hashes --requirement $(TEST_LOCK)
	$(INSTALL_PROJECT)
	@touch $@

# Locks are made on the oldest Python, from the public index alone; `make lock UPGRADE=--upgrade`
# takes the newest versions, without it only what pyproject.toml asks for changes.
LOCK_PYTHON ?= python3.11
LOCK_VENV := build/lock
UPGRADE ?=
PIP_COMPILE := env -u PIP_FIND_LINKS -u PIP_EXTRA_INDEX_URL PIP_CONFIG_FILE=/dev/null \
  CUSTOM_COMPILE_COMMAND="make lock" $(LOCK_VENV)/bin/pip-compile --quiet $(UPGRADE) \
  --generate-hashes --allow-unsafe --strip-extras --build-deps-for editable \
  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host

.PHONY: lock
lock: ## new hash-pinned locks from pyproject.toml
	$(LOCK_PYTHON) -m venv $(LOCK_VENV)
	$(LOCK_VENV)/bin/python -m pip install --quiet "pip-tools>=7.6,<8"
	$(PIP_COMPILE) --output-file $(RUNTIME_LOCK) $(PROJECT)
	$(PIP_COMPILE) --extra test --constraint $(RUNTIME_LOCK) --output-file $(TEST_LOCK) $(PROJECT)

.PHONY: image-test
image-test: ## builds the image, starts it read-only as an unknown user, asks it, searches it
	$(PYTHON) -m deploy.image_test

.PHONY: clean
clean: ## removes the environment, caches and build products
	rm -rf $(VENV) build dist eulerlora.egg-info .mypy_cache .pytest_cache .ruff_cache
	find eulerlora training service benchmarks tests -name __pycache__ -prune -exec rm -rf {} +

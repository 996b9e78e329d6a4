# Needs Python 3.11 or newer with pip and venv, and nothing else. Everything goes into .venv.
#
#   make demo    the whole story on this machine, with a scripted model and no key
#   make test    all that CI checks of the source: lint, types and the three tiers of tests
#   make help    the rest

# The first that has what is needed; the pinned versions were compiled for Python 3.11.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
	2>/dev/null && echo $$python && break; done)
VENV ?= .venv
LOWEST := .venv-lowest
WHEEL := .venv-wheel
BLOCKS := build/doc-blocks
BIN := $(VENV)/bin
PIP := -m pip --disable-pip-version-check --quiet
# Arguments for the program behind a target: make unit ARGS="-k fork", make demo ARGS=--json
ARGS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint format types tests unit integration acceptance faults bench test-lowest \
	wheel requirements clean

help:  ## Show the targets
	@awk -F ':.*## ' '/^[a-z -]+:.*## / { gsub(/ /, "|", $$1); \
		printf "make %-28s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.demo  ## Run the main job on embedded parts
	$(BIN)/perdure demo $(ARGS)

test: lint types tests  ## Everything that must be green

lint: $(VENV)/.dev  ## Check style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(VENV)/.dev  ## Format, and mend what ruff can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(VENV)/.dev  ## Check types, those of the code in README and docs too
	$(BIN)/mypy
	$(BIN)/python -m tests.doc_blocks $(BLOCKS)
	$(BIN)/mypy --config-file docs/site/mypy.ini $(BLOCKS)

# Most tests wait for services more than they compute, so more of them run than there are cores;
# those that kill processes and look at the clock get the machine for fewer at a time.
tests: $(VENV)/.dev  ## The three tiers
	$(BIN)/pytest tests/unit tests/integration -n 4 --dist loadfile $(ARGS)
	$(BIN)/pytest tests/acceptance -n 2 --dist loadfile $(ARGS)

unit integration acceptance: %: $(VENV)/.dev  ## One tier
	$(BIN)/pytest tests/$* $(ARGS)

ui: $(VENV)/.dev  ## Approve a run in the real Temporal UI, in headless Chromium
	@command -v chromium || command -v google-chrome || \
		{ apt-get update -qq; DEBIAN_FRONTEND=noninteractive \
		apt-get install -qq --no-install-recommends chromium fonts-liberation; }
	$(BIN)/pytest tests/ui $(ARGS)

docs: $(VENV)/.dev  ## Build the documentation's site into build/site
	$(BIN)/properdocs build --quiet --config-file mkdocs.yml --site-dir build/site

faults: $(VENV)/.dev  ## Kill workers at random in 200 runs (ARGS="--fault server --seed 2")
	$(BIN)/python -m tests.acceptance.faults.campaign $(ARGS)

bench: $(VENV)/.dev  ## Measure beside the floor (ARGS="--only steps,throughput")
	$(BIN)/python -m tests.benchmarks $(ARGS)

test-lowest: $(LOWEST)/.dev  ## The tests on the lowest versions of the ranges in pyproject.toml
	$(LOWEST)/bin/pytest $(ARGS)

wheel: $(VENV)/.dev  ## Build, install the wheel alone into a clean environment and try it
	rm -rf build dist $(WHEEL)
	$(BIN)/python -m build
	$(PYTHON) -m venv $(WHEEL)
	$(WHEEL)/bin/python $(PIP) install -c requirements-dev.txt dist/*.whl
	$(WHEEL)/bin/python -I .ci/check_wheel.py dist/*.whl dist/*.tar.gz
	$(WHEEL)/bin/perdure --help >/dev/null
	$(WHEEL)/bin/python $(PIP) install -c requirements-dev.txt "$$(ls dist/*.whl)[dev-server]"
	cd $$(mktemp -d) && $(CURDIR)/$(WHEEL)/bin/perdure demo --json >/dev/null

requirements: $(VENV)/.dev  ## Compile requirements-dev.txt anew (make sure it is Python 3.11)
	$(BIN)/python $(PIP) install 'pip-tools>=7.5'
	$(BIN)/pip-compile --quiet --upgrade --all-extras --allow-unsafe --strip-extras --no-header \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options \
		--output-file requirements-dev.txt pyproject.toml
	sed -i '1i # Compiled for Python 3.11 from pyproject.toml, all extras: make requirements' \
		requirements-dev.txt

clean:  ## Remove the environments and everything that was built
	rm -rf $(VENV) $(LOWEST) $(WHEEL) build dist *.egg-info .mypy_cache .ruff_cache \
		.pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: an environment is made once, and its installs are repeated when the versions change.

$(VENV)/bin/python $(LOWEST)/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with pip and venv is needed; \
	name it with: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(@D:/bin=)

$(VENV)/.demo: pyproject.toml requirements-dev.txt | $(VENV)/bin/python
	@echo "Installing into $(VENV)..."
	$(BIN)/python $(PIP) install -c requirements-dev.txt -e '.[dev-server]'
	@touch $@

$(VENV)/.dev: pyproject.toml requirements-dev.txt | $(VENV)/bin/python
	@echo "Installing into $(VENV)..."
	$(BIN)/python $(PIP) install -r requirements-dev.txt
	$(BIN)/python $(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(LOWEST)/.dev: pyproject.toml requirements-lowest.txt | $(LOWEST)/bin/python
	@echo "Installing into $(LOWEST)..."
	$(LOWEST)/bin/python $(PIP) install -c requirements-lowest.txt -e '.[dev]'
	@touch $@

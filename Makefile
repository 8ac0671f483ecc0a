# Everything runs in .venv, made here with $(PYTHON): `make PYTHON=python3.12 test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet -c constraints.txt
REQUIREMENTS := pyproject.toml constraints.txt
LOCKED := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet --require-hashes
DEVELOPMENT := avro delta docs fast http iceberg kafka metrics nats otel parquet polars postgres protobuf rocksdb s3 zstd dev
UV := uv==0.13.9

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-versions prove mutants check soak tables docs bench lock clean environment

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 16

demo: $(VENV)/.demo ## Run the demo
	@$(BIN)/crosscut demo

# Where a process of the tests is gone, xdist waits for ever for the rest of its files.
# The order of tests/conftest.py, the slowest directories first: by default xdist ends with the files that have
# the fewest tests, which are the slowest, and one process waits for the other.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test: environment ## Run all tests
	@$(PYTEST)

prove: environment ## Run all tests in their long form
	@$(PYTEST) --prove

test-versions: environment ## Try each pair of Spark and Python that this machine can make
	@$(BIN)/python -m tests.versions

MINUTES ?= 30

soak: environment ## Kill, pause and cut jobs for MINUTES (30), and as long again with Kafka and Postgres
	@PYTHONPATH=src $(BIN)/python tests/process/soak.py --minutes $(MINUTES)
	@PYTHONPATH=src $(BIN)/python tests/process/services_soak.py --minutes $(MINUTES)

mutants: environment ## Plant each mutant of tests/proof, and see that its tests find it
	@$(BIN)/python -m tests.proof.mutants

tables: environment ## Make the tables and pictures of the documentation anew
	@$(BIN)/python -m tests.tables
	@$(BIN)/python docs/sequences.py

docs: environment ## Build the documentation, into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs --quiet build --strict

check: environment ## Run linters, type checker and import rules
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

bench: $(VENV)/.bench ## Run the benchmarks
	@$(BIN)/python -m bench

lock: $(VENV)/.made ## Renew requirements.lock from pyproject.toml and constraints.txt
	@test -x $(VENV)/uv/bin/uv || { $(PYTHON) -m venv $(VENV)/uv && $(VENV)/uv/bin/python -m pip install --quiet $(UV); }
	@$(VENV)/uv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	    --no-header --no-annotate --no-emit-index-url --no-emit-find-links --constraints constraints.txt \
	    $(addprefix --extra ,$(DEVELOPMENT)) --upgrade --output-file requirements.lock pyproject.toml

clean: ## Remove the environment, caches and build products
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +

environment: $(VENV)/.test

$(VENV)/.demo: $(VENV)/.made $(REQUIREMENTS)
	@echo "Installing into $(VENV)"
	@$(PIP) -e '.[fast]'
	@touch $@

$(VENV)/.test: $(VENV)/.made $(REQUIREMENTS) requirements.lock
	@echo "Installing into $(VENV), for development"
	@$(LOCKED) -r requirements.lock
	@$(PIP) --no-deps -e .
	@touch $(VENV)/.demo $@

$(VENV)/.bench: $(VENV)/.made $(REQUIREMENTS)
	@echo "Installing into $(VENV), for benchmarks"
	@$(PIP) -e '.[fast,metrics,parquet,rocksdb,bench]'
	@touch $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Crosscut needs Python 3.11 or newer, and $(PYTHON) is not: try make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# Everything a person runs by hand. `make` alone prints the targets.
# Needs Linux, Python >= 3.11 and make; no root, no Docker, no Java, no Postgres of the system.
# A stamp file in .venv remembers what was installed, so a second run starts at once.

PYTHON ?= python3
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n + 2)))
MUTANTS ?=
VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
INSTALLED_BY := pyproject.toml constraints.txt Makefile
STAMP_ALL := $(VENV)/.installed-all
STAMP_DEMO := $(VENV)/.installed-demo
# `make demo` asks for the small install only where the full one is not there.
STAMP_FOR_DEMO := $(if $(wildcard $(STAMP_ALL)),$(STAMP_ALL),$(STAMP_DEMO))

ifdef UV
PIP_INSTALL = $(UV) pip install --quiet --python $(BIN)/python -c constraints.txt
else
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
endif

# Some environments switch bytecode off. A test run starts hundreds of processes; each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

# Once, before several processes need them at the same time.
COMPILE_KERNELS = $(BIN)/siltstone compactor warm >/dev/null

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo check test conformance mutants lint types infra-check bench soak lock clean

help:  ## print this list
	@echo "Siltstone: a Kafka-compatible log on an object store and Postgres"
	@echo
	@awk -F ':.*##[[:space:]]*' '/^[a-z%-]+:.*## / { sub("%", "NAME", $$1); printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  PYTHON=$(PYTHON) (>= 3.11), WORKERS=$(WORKERS) (test processes), installer: $(if $(UV),uv,pip)"

install: $(STAMP_ALL)  ## everything a developer needs, in .venv (all extras)

demo: $(STAMP_FOR_DEMO)  ## 336,776 flights through a real agent and back, compared record by record
	@$(BIN)/siltstone demo

check: lint types  ## lint, types, unit and property tests: the inner loop
	@$(COMPILE_KERNELS)
	$(BIN)/python -m pytest -n $(WORKERS) -m "not soak" tests/unit tests/property

test: $(STAMP_ALL)  ## all tests but the long proofs
	@$(COMPILE_KERNELS)
	$(BIN)/python -m pytest -n $(WORKERS) -m "not soak"

conformance: $(STAMP_ALL)  ## Kafka clients in Go, which `make test` leaves out (needs Go)
	$(BIN)/python -m pytest -n 0 -k "franz-go or sarama" tests/conformance/test_scenarios.py \
		tests/conformance/transactions/test_copiers.py

mutants: $(STAMP_ALL)  ## plant bugs that the tests must find (MUTANTS="name ..." for some)
	@$(COMPILE_KERNELS)
	@$(BIN)/python -m tests.mutants $(MUTANTS)

lint: $(STAMP_ALL)  ## style, formatting, and who may import whom
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/lint-imports

types: $(STAMP_ALL)  ## pyright, strict
	$(BIN)/pyright --pythonpath $(BIN)/python

infra-check: $(STAMP_ALL)  ## apply infra/terraform to a stand-in for AWS, with the real provider if at hand, and scan what it makes
	@$(BIN)/python -m infra.check

bench: $(STAMP_ALL)  ## all benchmarks in the small size, in under 10 minutes
	@$(BIN)/python -m bench

bench-%: $(STAMP_ALL)  ## one benchmark in full: `python -m bench --help` names them
	@$(BIN)/python -m bench $* --full

soak: $(STAMP_ALL)  ## the long proofs, and property tests with many more examples
	$(BIN)/python -m pytest -n 0 -m "soak or matrix" --timeout 3600
	$(BIN)/python -m pytest -n $(WORKERS) -m "not soak" --hypothesis-profile=soak --timeout 3600 tests/property tests/unit

lock:  ## resolve the dependencies again into constraints.txt (needs uv)
	@test -n "$(UV)" || { echo "make lock needs uv on the PATH: https://docs.astral.sh/uv/" >&2; exit 1; }
	$(UV) pip compile -q --python-version 3.11 --universal --all-extras --no-header --no-annotate \
		--no-emit-index-url pyproject.toml -o constraints.txt

clean:  ## remove .venv and caches; data directories stay
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- the environment ---------------------------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		found=$$($(PYTHON) --version 2>/dev/null) || found="not there"; \
		echo "Siltstone needs Python >= 3.11; '$(PYTHON)' is $$found. Name another: make PYTHON=python3.12" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(if $(UV),--without-pip) $(VENV) || { rm -rf $(VENV); \
		echo "python could not make a virtual environment; on Debian and Ubuntu: apt install python3-venv, or put uv on the PATH" >&2; \
		exit 1; }

# A .venv that was made while uv was there has no pip.
define ensure_installer
	@$(if $(UV),true,$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null)
endef

$(STAMP_ALL): $(INSTALLED_BY) | $(BIN)/python
	$(ensure_installer)
	@echo "installing siltstone with all extras (the first time takes some minutes)"
	@$(PIP_INSTALL) -e '.[demo,spark,tables,sql,delta,oauth,otel,fast-s3,dev]'
	@touch $@ $(STAMP_DEMO)

$(STAMP_DEMO): $(INSTALLED_BY) | $(BIN)/python
	$(ensure_installer)
	@echo "installing siltstone with the demo's clients and data, and Spark (about 500 MB)"
	@$(PIP_INSTALL) -e '.[demo,spark]'
	@touch $@

# One command per task; continuous integration runs the same ones. `make` alone lists them.

PYTHON ?= python3
JOBS ?= 2
MINUTES ?= 10

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed.stamp
EXTRAS := sim,flower,privacy,tracking,dev
AUDIT := .venv-audit

.DEFAULT_GOAL := help
.PHONY: help install run test lint types tests test-slow test-engine chaos fuzz test-ray bench bench-peers results dist audit format clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv with all extras but ray (PYTHON=python3.12 picks another Python)

# Runs again only when one of these two files has changed.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "fedsteer needs Python 3.11 or newer, and '$(PYTHON)' is not." >&2; \
		echo "Name another one: make $(or $(MAKECMDGOALS),install) PYTHON=python3.12" >&2; \
		exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt setuptools
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[$(EXTRAS)]'
	@touch $@

run: install ## compare all rules on the embedded data: table here, report page in runs/
	$(BIN)/fedsteer compare

test: lint types tests ## everything that must pass: lint, types, tests

lint: install ## style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install ## static types
	$(BIN)/mypy

tests: install ## the tests that take seconds
	$(BIN)/pytest -n $(JOBS) -m "not slow and not engine"

test-slow: install ## the tests that take minutes
	$(BIN)/pytest -m slow

test-engine: install ## Flower's real engine: SuperLink and SuperNodes as processes on loopback
	$(BIN)/pytest -m engine

chaos: install ## break runs: hundreds of kills, full disks, power losses; real federations' faults
	$(BIN)/pytest -m chaos
	$(BIN)/python -m tests.chaos

# atheris has no wheels for some systems; Hypothesis draws the inputs there.
fuzz: install ## odd inputs for every reader: MINUTES=10 in all; what breaks one goes to tests/fuzz/corpus
	-@$(BIN)/python -m pip install --quiet --only-binary :all: -c constraints.txt atheris
	$(BIN)/python -m tests.fuzz.run --minutes $(MINUTES)

test-ray: install ## tests of runs on a Ray cluster of this machine; installs ray first
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[ray]'
	$(BIN)/pytest tests/simulate/test_ray.py

bench: install ## time and memory of a server step against bare matrix products
	$(BIN)/python benchmarks/server_step.py

results: install ## remake the tables and pictures of results/ and the README from committed records
	$(BIN)/python results/regenerate.py

bench-peers: install ## the same rounds here, on pfl, Flower, FedJAX and a plain loop; sets them up
	$(BIN)/python benchmarks/peers/run.py

dist: install ## the wheel and the source archive, into dist/
	rm -rf build dist
	$(BIN)/python -c 'from setuptools.build_meta import *; build_sdist("dist"); build_wheel("dist")' \
		>/dev/null

$(AUDIT)/installed.stamp: tools/audit.txt | install
	@test -x $(AUDIT)/bin/python || $(BIN)/python -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet -r tools/audit.txt
	@touch $@

audit: dist $(AUDIT)/installed.stamp ## licences, known vulnerabilities, and a list of parts (SBOM) in dist/
	$(AUDIT)/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type library \
		--output-reproducible --output-file dist/sbom.cdx.json $(BIN)/python
	$(BIN)/python tools/audit.py $(AUDIT)/bin/pip-audit

format: install ## rewrite the sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environment, caches and build outputs; runs/ stays
	rm -rf $(VENV) $(AUDIT) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

BASE_PYTHON ?= python3
FUZZ_CASES ?= 200000
FUZZ_SEED ?= 0
MUTANTS ?= 160
PARTS ?= core

PYTHON := .venv/bin/python
PIP := $(PYTHON) -m pip
STAMP := .venv/.installed
DIST_PYTHON ?= $(PYTHON)
TYPED := src $(wildcard tests/typing)
EXAMPLES := $(sort $(wildcard examples/*.py))

# Built for CUDA: where its libraries are missing, every package that looks for torchvision fails to import. Two tests use it.
APART := torchvision==0.28.0 timm==1.0.31
SUITE_GROUPS := --group tests --group integration

# Without bytecode each process of a run compiles all of the library and of its tests anew.
unexport PYTHONDONTWRITEBYTECODE

# The tests of a file go to one process: ranks, a browser and a library's first import are paid for once.
SUITE := -m pytest -n 2 --dist loadfile
QUICK := $(SUITE) -m "not slow and not long and not docs"
BOTH := $(SUITE) -m "not slow and not docs"

THREADED := $(wildcard tests/test_audit_[b-gm-z]*.py tests/test_amp_*.py tests/test_values*.py) tests/test_rule_programs.py \
	tests/test_modes.py tests/test_guard.py tests/test_autocast.py tests/test_healthy.py tests/test_compare.py

BROWSER := $(shell command -v chromium && command -v chromedriver)
AS_ROOT := $(shell [ "$$(id -u)" = 0 ] || echo sudo -n)

.PHONY: help .venv browser demo test test-long test-all test-oldest test-newest test-threads fuzz conformance mutants bench lint types docs examples dist clean
.DEFAULT_GOAL := help

help:
	@echo "demo      train a small model on digits, with contracts on"
	@echo "browser   install Chromium, for the tests of the report's page"
	@echo "test      the quick tests"
	@echo "test-long those that take a while, and reach no more lines than the quick ones"
	@echo "test-all  everything, before a release: all tests with all examples, mutants, oldest and newest versions"
	@echo "test-oldest  the same as test, with the oldest versions that pyproject.toml allows, in .venv-oldest"
	@echo "test-newest  the same, with the newest versions of everything, in .venv-newest"
	@echo "test-threads  audits, watches and contracts with backward in a thread of its own, as on a GPU; needs g++ and ninja"
	@echo "fuzz      FUZZ_CASES=$(FUZZ_CASES) random cases from FUZZ_SEED=$(FUZZ_SEED)"
	@echo "conformance  ten thousand drawn values for each annotation of a table, against jaxtyping"
	@echo "mutants   MUTANTS=$(MUTANTS) small faults in PARTS=$(PARTS) of tests/mutate.py, and which of them the suite sees"
	@echo "bench     the benchmarks, as ratios"
	@echo "lint      ruff"
	@echo "types     mypy and pyright"
	@echo "docs      build docs/_build/html, and run the programs of all pages"
	@echo "examples  every script in examples/, warnings as errors, and the notebook"
	@echo "dist      the wheel and the sdist, the same bytes from the same commit, and a recipe for conda-forge"
	@echo "clean     remove what was built (.venv stays)"

.venv: $(STAMP)

$(STAMP): pyproject.toml constraints-dev.txt
	@$(BASE_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "dtypeguard needs Python 3.11 or newer, but '$(BASE_PYTHON)' is $$($(BASE_PYTHON) --version 2>&1)." \
			"Name another one: make BASE_PYTHON=python3.12" >&2; exit 1; }
	$(BASE_PYTHON) -m venv .venv
	$(PIP) install --quiet --upgrade "pip>=25.1"
	$(PIP) install --quiet -c constraints-dev.txt -e . --group dev
	$(PIP) install --quiet --no-deps --upgrade --target .venv/apart $(APART)
	@touch $@

# The floors of pyproject.toml, exactly, and what the suite needs beside them.
.venv-oldest/.installed: pyproject.toml tests/floors.py
	$(BASE_PYTHON) -m venv --clear .venv-oldest
	$(BASE_PYTHON) tests/floors.py > .venv-oldest/constraints.txt
	.venv-oldest/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-oldest/bin/python -m pip install --quiet -c .venv-oldest/constraints.txt -e ".[all]" $(SUITE_GROUPS)
	@touch $@

# What is newest changes from day to day, so it is asked for each time.
.venv-newest/bin/python:
	$(BASE_PYTHON) -m venv .venv-newest

# The pages of reports are tested in a real browser, where the distribution has one; tests say so where it does not.
browser:
ifeq ($(BROWSER),)
	-command -v apt-get > /dev/null && $(AS_ROOT) apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive $(AS_ROOT) apt-get install -qq -y chromium chromium-driver > /dev/null
endif

# In the development environment, if that is there; else in one that has only what the demo needs.
demo: $(if $(wildcard $(STAMP)),,.venv-demo/.installed)
	$(if $(wildcard $(STAMP)),.venv,.venv-demo)/bin/python examples/digits.py

.venv-demo/.installed: pyproject.toml constraints-dev.txt
	$(BASE_PYTHON) -m venv .venv-demo
	.venv-demo/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-demo/bin/python -m pip install --quiet -c constraints-dev.txt . scikit-learn tqdm
	@touch $@

test: .venv browser
	$(PYTHON) $(QUICK)

test-long: .venv browser
	$(PYTHON) $(SUITE) -m "long and not slow and not docs"

test-all: .venv browser
	$(PYTHON) $(SUITE) --hypothesis-profile=all
	$(MAKE) --no-print-directory mutants test-oldest test-newest test-threads

test-oldest: .venv-oldest/.installed
	.venv-oldest/bin/python $(BOTH)

test-newest: .venv-newest/bin/python
	$< -m pip install --quiet --upgrade "pip>=25.1"
	$< -m pip install --quiet --upgrade --upgrade-strategy eager -e ".[all]" $(SUITE_GROUPS)
	$< $(BOTH)

# One thread of OpenMP: in a new thread torch sets their number only at the first loop that it divides.
# Of what is left out, one makes such threads itself, and one counts what warnings leave behind.
test-threads: .venv
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(PYTHON) $(BOTH) -p foreign_backward -k "not thread_of_autograd and not transforms_forward_and_backward" $(THREADED)

fuzz: .venv
	$(PYTHON) tests/fuzz.py $(FUZZ_CASES) $(FUZZ_SEED)

conformance: .venv
	DTYPEGUARD_VALUES=10000 $(PYTHON) -m pytest -n 2 -m slow tests/test_testing_conformance.py

mutants: .venv
	$(PYTHON) tests/mutate.py --count $(MUTANTS) $(PARTS:%=--part %)

bench: .venv
	$(PYTHON) benchmarks/run.py

lint: .venv
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types: .venv
	$(PYTHON) -m mypy --strict $(TYPED)
	$(PYTHON) -m pyright --pythonpath $(PYTHON) $(TYPED)
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(PYTHON) -m pyright --verifytypes dtypeguard --ignoreexternal > .venv/types.txt || { cat .venv/types.txt; exit 1; }

docs: .venv
	$(PYTHON) -m sphinx -W --keep-going -q -b html docs docs/_build/html
	$(PYTHON) -m pytest -q -n 2 -m docs tests/test_docs.py

examples: .venv
	@set -e; for script in $(EXAMPLES); do \
		echo "$$script"; timeout 120 $(PYTHON) -W error "$$script"; done
	@echo examples/notebook.ipynb; $(PYTHON) -m pytest -q tests/test_notebook.py

# With the date of the commit; `make dist DIST_PYTHON=python` builds with another environment that has hatchling.
dist: $(if $(filter $(PYTHON),$(DIST_PYTHON)),.venv)
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(DIST_PYTHON) -m hatchling build -d dist
	$(DIST_PYTHON) conda/feedstock.py dist

clean:
	rm -rf build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find src tests examples benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# `make help` lists the words. A fresh machine needs Python 3.11 or newer and make, nothing else.

VENV ?= .venv
BIN = $(VENV)/bin
NEWEST_VENV ?= .venv-newest
WHEEL_VENV ?= .venv-wheel
ARGS ?=
QUICK = $(addprefix tests/, routing dispatch experts grouped layers models faults \
	cli/test_check.py mx/test_vectors.py)
TARGET ?=

# The first Python that is new enough; `make PYTHON=/path/to/python3 ...` overrides it.
find_python = for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; exit; }; done
PYTHON ?= $(shell $(find_python))

PIP = $(BIN)/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt
installed = $(VENV)/.installed-

.DEFAULT_GOAL := help
.PHONY: help check test mutants test-parallel test-thorough test-newest format lint types docs bench wheel clean
.NOTPARALLEL:

help: ## list the words
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-15s %s\n", $$1, $$2}' Makefile

check: $(installed)test ## judge what is shipped here, or TARGET=module:name ARGS="--op OP"
	$(BIN)/moe-ref check $(TARGET) --html moe-ref-report.html $(ARGS)

test: $(installed)test ## the tests on one device, under 10 minutes on two cores; ARGS= to pytest
	$(BIN)/python -m pytest -n auto --dist loadfile --ignore tests/parallel \
		--ignore tests/conformance $(ARGS)

test-parallel: $(installed)test ## expert parallelism on many virtual devices and several processes
	$(BIN)/python -m pytest -n auto tests/parallel $(ARGS)

mutants: $(installed)test ## every check against wrong kernels and right ones, and the tests of conformance
	$(BIN)/moe-ref mutants --quick $(ARGS)
	$(BIN)/moe-ref mutants --correct --seeds 1
	$(BIN)/python -m pytest -n auto --dist loadfile tests/conformance

test-thorough: $(installed)test ## every test, with many more examples
	$(BIN)/python -m pytest -n auto --dist loadfile -m "" --hypothesis-profile=thorough $(ARGS)

test-newest: ## the quick tests under the newest Python found, hence the newest JAX
	@python=$$(.ci/newest-python) || { echo "test-newest: skipped, $$python"; exit 0; }; \
	$(MAKE) --no-print-directory test VENV=$(NEWEST_VENV) PYTHON="$$python" \
		ARGS='-m "not slow and not thorough" $(QUICK) $(ARGS)'

format: $(installed)lint ## rewrite the source in the house style
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

lint: $(installed)lint ## style, likely bugs, and the direction of imports
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/lint-imports

types: $(installed)test $(installed)lint ## static types of src
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(installed)docs ## the documentation site, in site/
	$(BIN)/properdocs build --strict -f mkdocs.yml

# Huge pages for what malloc hands out, to us and to the peers alike: without them a fresh result
# costs a page fault for every 4 KiB, which is 15% of a layer's time.
bench: $(installed)bench ## measure against peers; needs torch and transformers
	GLIBC_TUNABLES=$${GLIBC_TUNABLES-glibc.malloc.hugetlb=1} $(BIN)/python -m benchmarks $(ARGS)

wheel: $(VENV)/bin/python ## build the wheel, install it alone, use it from an empty folder
	rm -rf dist $(WHEEL_VENV)
	$(BIN)/python -m pip --disable-pip-version-check --quiet wheel --no-deps --wheel-dir dist .
	$(PYTHON) -m venv $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/python -m pip --disable-pip-version-check --quiet install \
		--constraint constraints.txt dist/*.whl
	$(WHEEL_VENV)/bin/python -I .ci/check_wheel.py

clean: ## remove what the other words made
	rm -rf $(VENV) $(NEWEST_VENV) $(WHEEL_VENV) dist site moe-ref-report*

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(installed)%: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[$*]'
	@touch $@

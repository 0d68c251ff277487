# One virtual environment, and a stamp in it for each set of extras that was installed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-all test-oldest test-hosts lint bench guard mutants docs reproductions release-check clean

help: ## list the targets
	@grep -E '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z%-]+):[^#]*## (.*)/\1	\2/' | expand -t 16

demo: $(VENV)/.installed-plot ## certified leave-one-out of real data; the picture goes to out/
	$(BIN)/leaveout demo --out out

# Byte code of the tests and the library is kept: compiling it takes each worker half a minute.
export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.installed-test ## the tests, without the slow ones
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-all: test-oldest ## all tests, with programs compiled as users have them, and the quick ones as on an old processor
	JAX_DISABLE_MOST_OPTIMIZATIONS=0 $(BIN)/python -m pytest -n auto --dist worksteal

# BLAS, NumPy (2.4 and newer) and XLA without AVX: numbers then differ by rounding, as between two machines.
OLDEST := OPENBLAS_CORETYPE=Prescott NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL AVX512_SPR" XLA_FLAGS=--xla_cpu_max_isa=SSE4_2

test-oldest: $(VENV)/.installed-test ## the tests without the slow ones, as on a processor without AVX
	$(OLDEST) $(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-hosts: ## the tests of hosts that need an older pandas, and of samplers, in an environment of their own
	$(PYTHON) -m venv out/hosts
	out/hosts/bin/pip install -q -e ".[jax,formula,lifelines,sksurv,nemos,numpyro,pymc]" beartype hypothesis pytest
	out/hosts/bin/python -m pytest tests/extensions/hosts/test_lifelines.py tests/extensions/hosts/test_sksurv.py tests/extensions/hosts/test_nemos.py tests/extensions/bayes

lint: $(VENV)/.installed-dev ## style, format, types and measures
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python tools/house.py

docs: $(VENV)/.installed-docs ## the documentation, a site in out/site
	$(BIN)/mkdocs build

reproductions: $(VENV)/.installed-dev ## the programs behind docs/reproductions with their times, and the pages from saved results
	$(BIN)/python experiments/reproductions.py

release-check: $(VENV)/.installed-release ## build, check, install under each Python with oldest and newest dependencies
	$(BIN)/python tools/release.py $(RELEASE)

bench: $(VENV)/.installed-bench ## every program in benchmarks/ and benchmarks/speed/, one after the other (long)
	@for program in $$(grep -l '^if __name__' benchmarks/*.py benchmarks/speed/*.py); do echo "== $$program"; $(BIN)/python "$$program" || exit 1; done

bench-%: $(VENV)/.installed-bench ## one program of benchmarks/, as bench-peers; its arguments by ARGS="--quick"
	$(BIN)/python benchmarks/$*.py $(ARGS)

speed-%: $(VENV)/.installed-bench ## one program of benchmarks/speed/, as speed-chains
	$(BIN)/python benchmarks/speed/$*.py $(ARGS)

AGAINST ?= $(shell git merge-base HEAD origin/main 2>/dev/null || echo HEAD~1)

guard: $(VENV)/.installed-bench ## thirty calls, in turns with those of another commit, as AGAINST=v0.1.0: fifteen minutes with nothing else running
	$(BIN)/python benchmarks/guard.py --against $(AGAINST)

mutants: $(VENV)/.installed-test ## small faults planted in a copy: do the quick tests see each? (hours)
	$(BIN)/python tools/mutants.py

clean: ## remove pictures, packages and caches; the virtual environment stays
	rm -rf out dist build .pytest_cache .mypy_cache .ruff_cache
	find src tests tools benchmarks experiments examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	@echo "installing leaveout[$*] into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Two commands: `make train` learns a molecular property with the embedded data, `make test` runs the tests.
# Both create .venv and install into it first; an interrupted set-up is taken up again by the next call.
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help train train-dipole test test-slow test-e3nn test-integrations triton-releases lint docs wheel-check clean python

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# one worker per core; each has one thread, because two threads on a busy core are far slower than one
WORKERS ?= auto
PYTEST  := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(WORKERS) --maxprocesses 8 --dist loadgroup
FIT     := $(BIN)/eqlayers fit -c
# runs the tests beside packages whose requirements exclude each other, each in an environment in .nox
NOX     := .nox/runner
# releases of Triton beside the installed one, each in a folder of its own, which comes first on PYTHONPATH in its tests
RELEASES := $(patsubst requirements-triton-%.txt,$(VENV)/triton/%/.installed,$(wildcard requirements-triton-*.txt))

help:
	@echo "make train         fit and test on the embedded molecules (energy U0)"
	@echo "make train-dipole  the same for the dipole moment, from a vector read-out"
	@echo "make test          all tests but the slow ones; make test-slow: all of them"
	@echo "make test-integrations  tests beside NequIP and MACE, in environments of their own (2 GB, some minutes)"
	@echo "make test-e3nn     e3nn's own tests against our layers (20 min), and the page that lists them"
	@echo "make triton-releases  the oldest and the newest Triton for the tests of the kernels (2 GB); part of make test"
	@echo "make lint          ruff and mypy"
	@echo "make docs          HTML documentation in docs/_build/html"
	@echo "make wheel-check   build a wheel and import every package from it in a clean environment"
	@echo "make clean         remove what the commands above made, except runs/"

train: $(VENV)/.installed-train
	$(FIT) configs/qm9_mini.yaml

train-dipole: $(VENV)/.installed-train
	$(FIT) configs/qm9_mini_dipole.yaml

test: $(VENV)/.installed-test $(RELEASES)
	$(PYTEST) -m "not slow"

test-slow: $(VENV)/.installed-test $(RELEASES)
	$(PYTEST)

test-integrations: $(NOX)/.installed
	$(NOX)/bin/nox

test-e3nn: $(VENV)/.installed-test
	$(BIN)/python tests/e3nn_suite/run.py --output docs/reference/e3nn_suite.md --quiet

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-docs
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

wheel-check: $(VENV)/.installed-test
	$(BIN)/pytest tests/test_packaging.py

# The stamp is written last, so that an interrupted installation is repeated and a finished one is not.
$(VENV)/.installed-train: EXTRAS := train
$(VENV)/.installed-test:  EXTRAS := test,train
$(VENV)/.installed-docs:  EXTRAS := docs,train
$(VENV)/.installed-%: pyproject.toml constraints.txt | python
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

triton-releases: $(RELEASES)

$(VENV)/triton/%/.installed: requirements-triton-%.txt | $(VENV)/.installed-test
	@rm -rf $(@D)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --target $(@D) --requirement $<
	@touch $@

$(NOX)/.installed: constraints.txt | python
	@$(NOX)/bin/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(NOX)
	$(NOX)/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt nox
	@touch $@

python:
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(0 if sys.version_info >= (3, 10) else \
	    f"eqlayers needs Python 3.10 or newer; $(PYTHON) is {v}. Name another one: make PYTHON=python3.11")'

clean:
	rm -rf $(VENV) .nox build dist docs/_build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name '__pycache__' -o -name '*.egg-info' | xargs rm -rf

# Two commands: `make train` learns a molecular property with the embedded data, `make test` runs the tests.
# Both create .venv and install into it first; an interrupted set-up is taken up again by the next call.
.DELETE_ON_ERROR:
.NOTPARALLEL:

# fresh processes of the tests would compile all modules again, and every run the assertions of all tests
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
INSTALL := -m pip --disable-pip-version-check install
# one worker per core; each has one thread, because two threads on a busy core are far slower than one
WORKERS ?= auto
PYTEST  := OMP_NUM_THREADS=1 $(BIN)/pytest --no-skips --numprocesses $(WORKERS) --maxprocesses 8 --dist loadgroup
PINS    := .ci/constraints
# releases of Triton beside the installed one, each in a folder of its own, which comes first on PYTHONPATH in its tests
RELEASES := $(patsubst $(PINS)/triton-%.txt,$(VENV)/triton/%/.installed,$(wildcard $(PINS)/triton-*.txt))

# of mace.txt, what tested.txt has not or has in another version, as far as tests import it
BESIDE_MACE := ConfigArgParse cuequivariance cuequivariance-torch e3nn h5py lmdb mace-torch matscipy orjson prettytable python_hostlist torch-ema wcwidth

# What a command does and how long that takes on two cores: `make help` lists it, and each command says it first.
does.train    := fit to the energy U0 of the embedded molecules and test it: 4 to 17 min on an AMD EPYC, by what else it runs
does.test     := all tests but the slow ones and the tests of sessions of nox: 6 to 13 min on an AMD EPYC, 4 to 7 min with the kernels of an earlier run
does.test-all := every test there is in .venv, with the slow ones and the tests of sessions of nox
does.lint     := ruff, mypy, and the tests of text and structure of the repository: a minute
does.docs     := run the tutorials, and write the HTML documentation to docs/_build/html: 3 to 6 min on an AMD EPYC
does.clean    := remove what the commands above and nox made, except runs/
COMMANDS := train test test-all lint docs clean

# What a set-up downloads, with a build of torch for CPUs. Where pip finds the one for CUDA it is some GB more.
load.train  := 0.3 GB, 1.4 GB on disk
load.test   := 0.55 GB, 2.2 GB on disk
load.docs   := 0.5 GB, 1.7 GB on disk
load.triton := 0.5 GB, 1.7 GB on disk
load.mace   := 0.1 GB

.PHONY: help python $(COMMANDS)

help:
	@$(foreach name,$(COMMANDS),printf '%-13s %s\n' 'make $(name)' '$(does.$(name))';)
	@echo 'The first call sets up $(VENV) and says before what it downloads: train $(load.train); test $(load.test).'
	@echo 'Further tests are sessions of nox: after make lint, $(BIN)/nox -l lists them.'

# a prerequisite, so that it comes before the set-up
about-%:
	@echo 'make $*: $(does.$*)'

train: about-train $(VENV)/.installed-train
	$(BIN)/eqlayers fit --resume -c configs/qm9_mini.yaml

test: about-test $(VENV)/.installed-test
	$(PYTEST) -m "not (slow or long or bench or packaging or releases or sanitizer)" --ignore=tests/bench --ignore=tests/repository

test-all: about-test-all $(VENV)/.installed-test $(RELEASES)
	$(PYTEST)

# a tutorial accelerates a model of mace-torch
docs: about-docs $(VENV)/.installed-docs $(VENV)/mace/.installed
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html
	$(BIN)/python docs/extensions/check_links.py docs/_build/html

lint: about-lint $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -m "not (slow or long)" tests/repository

# The stamp is written last, so that an interrupted installation is repeated and a finished one is not. The first line
# of an installation is a pip that shows how far it is: the one that comes with Python is silent for a minute.
$(VENV)/.installed-train: EXTRAS := train
$(VENV)/.installed-test:  EXTRAS := test,train
$(VENV)/.installed-docs:  EXTRAS := docs,train
$(VENV)/.installed-%: pyproject.toml $(PINS)/tested.txt | python
	@echo 'set-up of $(VENV): downloads $(load.$*), less what is there or in the cache of pip'
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --quiet --constraint $(PINS)/tested.txt pip
	$(BIN)/python $(INSTALL) --constraint $(PINS)/tested.txt --editable '.[$(EXTRAS)]'
	@touch $@

$(VENV)/triton/%/.installed: $(PINS)/triton-%.txt | $(VENV)/.installed-test
	@echo 'set-up of Triton $*: downloads $(load.triton)'
	@rm -rf $(@D)
	$(BIN)/python $(INSTALL) --no-deps --target $(@D) --requirement $<
	@touch $@

# of mace-torch what the environment lacks, without the torch and numpy that both have; behind the set-up of either
$(VENV)/mace/.installed: $(PINS)/mace.txt
	@echo 'set-up of mace-torch: downloads $(load.mace)'
	@rm -rf $(@D)
	$(BIN)/python $(INSTALL) --no-deps --target $(@D) --constraint $< $(BESIDE_MACE)
	@touch $@

python:
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(0 if sys.version_info >= (3, 10) else \
	    f"eqlayers needs Python 3.10 or newer; $(PYTHON) is {v}. Name another one: make PYTHON=python3.11")'

clean: about-clean
	rm -rf $(VENV) .nox build dist docs/_build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name '__pycache__' -o -name '*.egg-info' | xargs rm -rf

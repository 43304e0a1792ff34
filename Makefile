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
# the files with tests of a mark: to collect all files takes half a minute of each worker
MARKED   = $(shell grep -rlE 'mark\.$(1)\b' tests --include='*.py' | sort)
FIT     := $(BIN)/eqlayers fit --resume -c
# runs the tests beside packages whose requirements exclude each other, each in an environment in .nox
NOX     := .nox/runner
# releases of Triton beside the installed one, each in a folder of its own, which comes first on PYTHONPATH in its tests
RELEASES := $(patsubst requirements-triton-%.txt,$(VENV)/triton/%/.installed,$(wildcard requirements-triton-*.txt))

# of constraints-mace.txt, what constraints.txt has not or has in another version, as far as tests import it
BESIDE_MACE := ConfigArgParse cuequivariance cuequivariance-torch e3nn h5py lmdb mace-torch matscipy orjson prettytable python_hostlist torch-ema wcwidth

# What a command does and how long that takes on two cores: `make help` lists it, and each command says it first.
does.train                := fit to the energy U0 of the embedded molecules and test it: 6 to 8 min on an AMD EPYC, 10 min on a Zen 3
does.train-dipole         := the same for the dipole moment, from a vector read-out: 3 min on an AMD EPYC
does.train-forces         := energies and forces of ethanol, then 10,000 steps of dynamics at constant energy: 8 min on an Intel Xeon
does.test                 := all tests but the tests of the next seven commands: 6 to 10 min on an AMD EPYC, 4 to 7 min with the kernels of an earlier run
does.test-bench           := the tests of the benchmark, which make test leaves out: 2 min
does.test-long            := tests of fresh processes and long compilations, which make test leaves out: 7 min
does.test-slow            := every test there is, with the slow ones and the tests of the other commands
does.test-triton-releases := the printed GPU kernels with the oldest and the newest Triton, no GPU needed: 1 min on an AMD EPYC
does.test-mace            := tests of tables and contractions beside mace-torch, whose e3nn 0.4.4 comes first on PYTHONPATH: 2 min
does.sanitizers           := the generated C under AddressSanitizer and UBSan
does.wheel-check          := build a wheel, and import every package from it in a clean environment; install a clone: half a minute
does.docs                 := run the tutorials, and write the HTML documentation to docs/_build/html: 3 to 6 min on an AMD EPYC
does.lint                 := ruff and mypy: half a minute
does.test-integrations    := tests beside NequIP and MACE, in environments of their own: some minutes
does.test-e3nn            := the tests that e3nn publishes, against our layers, and the page that lists them: 20 min
does.triton-releases      := the oldest and the newest Triton, in .venv/triton
does.mutations            := deliberate faults of the source, each of which the tests beside it must find: an hour or more
does.clean                := remove what the commands above made, except runs/
COMMANDS := train train-dipole train-forces test test-bench test-long test-slow test-triton-releases test-mace sanitizers wheel-check docs lint test-integrations \
            test-e3nn triton-releases mutations clean

# What a set-up downloads, with a build of torch for CPUs. Where pip finds the one for CUDA it is some GB more.
load.train           := 0.3 GB, 1.4 GB on disk
load.test            := 0.55 GB, 2.2 GB on disk
load.docs            := 0.5 GB, 1.7 GB on disk
load.triton-releases := 0.5 GB, 1.7 GB on disk
load.test-mace       := 0.1 GB
load.nox             := 2 GB

.PHONY: help python $(COMMANDS)

help:
	@$(foreach name,$(COMMANDS),printf '%-26s %s\n' 'make $(name)' '$(does.$(name))';)
	@echo 'The first call sets up $(VENV) and says before what it downloads: train $(load.train); test $(load.test).'

# a prerequisite, so that it comes before the set-up
about-%:
	@echo 'make $*: $(does.$*)'

train: about-train $(VENV)/.installed-train
	$(FIT) configs/qm9_mini.yaml

train-dipole: about-train-dipole $(VENV)/.installed-train
	$(FIT) configs/qm9_mini_dipole.yaml

train-forces: about-train-forces $(VENV)/.installed-train
	$(FIT) configs/ethanol.yaml
	$(BIN)/python examples/07_dynamics.py runs/ethanol

test: about-test $(VENV)/.installed-test
	$(PYTEST) -m "not (slow or long or bench or packaging or releases or sanitizer)" --ignore=tests/bench

test-bench: about-test-bench $(VENV)/.installed-test
	$(PYTEST) -m "bench and not (slow or long)" tests/bench

test-long: about-test-long $(VENV)/.installed-test
	$(PYTEST) -m "long and not slow" $(call MARKED,long)

test-slow: about-test-slow $(VENV)/.installed-test $(RELEASES)
	$(PYTEST)

test-triton-releases: about-test-triton-releases $(VENV)/.installed-test $(RELEASES)
	$(PYTEST) -m "releases and not slow" $(call MARKED,releases)

test-mace: about-test-mace $(VENV)/.installed-test $(VENV)/mace/.installed
	PYTHONPATH=$(VENV)/mace TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 $(PYTEST) tests/integrations/test_radial.py \
	    tests/integrations/mace/test_symmetric_contraction.py

sanitizers: about-sanitizers $(VENV)/.installed-test
	$(PYTEST) -m sanitizer $(call MARKED,sanitizer)

wheel-check: about-wheel-check $(VENV)/.installed-test
	$(BIN)/pytest tests/test_packaging.py

# a tutorial accelerates a model of mace-torch
docs: about-docs $(VENV)/.installed-docs $(VENV)/mace/.installed
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html
	$(BIN)/python docs/extensions/check_links.py docs/_build/html

lint: about-lint $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-integrations: about-test-integrations $(NOX)/.installed
	$(NOX)/bin/nox

test-e3nn: about-test-e3nn $(VENV)/.installed-test
	$(BIN)/python tests/e3nn_suite/run.py --output docs/reference/e3nn_suite.md --quiet

mutations: about-mutations $(VENV)/.installed-test
	$(BIN)/python tests/mutations/run.py

# The stamp is written last, so that an interrupted installation is repeated and a finished one is not. The first line
# of an installation is a pip that shows how far it is: the one that comes with Python is silent for a minute.
$(VENV)/.installed-train: EXTRAS := train
$(VENV)/.installed-test:  EXTRAS := test,train
$(VENV)/.installed-docs:  EXTRAS := docs,train
$(VENV)/.installed-%: pyproject.toml constraints.txt | python
	@echo 'set-up of $(VENV): downloads $(load.$*), less what is there or in the cache of pip'
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --quiet --constraint constraints.txt pip
	$(BIN)/python $(INSTALL) --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

triton-releases: about-triton-releases $(RELEASES)

$(VENV)/triton/%/.installed: requirements-triton-%.txt | $(VENV)/.installed-test
	@echo 'set-up of Triton $*: downloads $(load.triton-releases)'
	@rm -rf $(@D)
	$(BIN)/python $(INSTALL) --no-deps --target $(@D) --requirement $<
	@touch $@

# of mace-torch what the environment lacks, without the torch and numpy that both have; behind the set-up of either
$(VENV)/mace/.installed: constraints-mace.txt
	@echo 'set-up of mace-torch: downloads $(load.test-mace)'
	@rm -rf $(@D)
	$(BIN)/python $(INSTALL) --no-deps --target $(@D) --constraint $< $(BESIDE_MACE)
	@touch $@

$(NOX)/.installed: constraints.txt | python
	@echo 'set-up of .nox: downloads $(load.nox), in the course of the command'
	@$(NOX)/bin/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(NOX)
	$(NOX)/bin/python $(INSTALL) --constraint constraints.txt nox
	@touch $@

python:
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(0 if sys.version_info >= (3, 10) else \
	    f"eqlayers needs Python 3.10 or newer; $(PYTHON) is {v}. Name another one: make PYTHON=python3.11")'

clean: about-clean
	rm -rf $(VENV) .nox build dist docs/_build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name '__pycache__' -o -name '*.egg-info' | xargs rm -rf

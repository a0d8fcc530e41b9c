# Two commands do everything, set-up included: `make repro` and `make test`. `make check` is the quick
# part of the tests, for while one works.
PYTHON ?= python3
BIN := $(CURDIR)/.venv/bin
INSTALLED := .venv/installed
RUN := PATH="$(BIN):$$PATH"
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --config-settings editable_mode=compat
PYTEST := OMP_NUM_THREADS=1 pytest -n 2 --dist worksteal

.PHONY: repro check test test-ray test-serve test-peers gpu-test chaos fuzz lint constraints

# Every run of the grid is trained side by side, then DVC is told of them and does the rest. `hcl dvc`
# is dvc with a lock file that is written whole: it may be stopped at any moment.
repro: $(INSTALLED)
	$(RUN) hcl settings --raw data/raw
	$(RUN) hcl dvc repro settings split
	$(RUN) hcl sweep --settings data/settings --deliver
	$(RUN) hcl dvc commit --quiet --force train
	$(RUN) hcl dvc repro
	@echo; cat report/headline.txt; echo "Report: $(CURDIR)/report/index.html"

check: $(INSTALLED) lint
	$(RUN) $(PYTEST) -m "not slow" --durations 3

test: $(INSTALLED) lint
	$(RUN) $(PYTEST)

# What only a GPU can show: see docs/gpu.md.
gpu-test: $(INSTALLED)
	@$(RUN) python -m benchmarks.gpu_check

# 10,000 mutations of each format, of parameters, folders and archives: half an hour of processor
# time. One kind alone: make fuzz ONLY='-k checkpoints'.
fuzz: $(INSTALLED)
	$(RUN) HCL_FUZZ=10000 $(PYTEST) tests/fuzz --durations 0 $(ONLY)

# On a Ray cluster of three nodes on this machine, one test after the other.
test-ray: $(INSTALLED).ray
	$(RUN) OMP_NUM_THREADS=1 pytest -m ray

# `hcl serve` over HTTP, killed, and its page in chromium.
test-serve: $(INSTALLED).serve
	$(RUN) OMP_NUM_THREADS=1 pytest -m serve

# The examples of docs/peers.md, inside river and Avalanche.
test-peers: $(INSTALLED).peers
	$(RUN) OMP_NUM_THREADS=1 pytest -m peers

# Kills at random moments, full disks, two processes on one output: about an hour. See SECURITY.md.
chaos: $(INSTALLED).serve
	$(RUN) OMP_NUM_THREADS=1 python -m tests.chaos

lint: $(INSTALLED)
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

# The environment: what pyproject.toml asks for, at the versions of constraints.txt. In compat mode the
# package is found even by a script that lies beside a clone named like it.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed; name one: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv .venv
	@echo "Installing into .venv: about 6 GB, some minutes …"
	$(INSTALL) --editable '.[dev,backbones]'
	@touch $@

$(INSTALLED).ray: $(INSTALLED)
	$(INSTALL) --editable '.[dev,backbones,ray]'
	@touch $@

$(INSTALLED).serve: $(INSTALLED)
	$(INSTALL) --editable '.[dev,backbones,serve]'
	@touch $@

$(INSTALLED).peers: $(INSTALLED)
	$(INSTALL) --editable '.[dev,backbones,peers]'
	@touch $@

# After a change of dependencies: install without pins in a new .venv, run the tests, then this.
constraints: $(INSTALLED).ray $(INSTALLED).serve $(INSTALLED).peers
	$(BIN)/pip freeze --exclude-editable > constraints.txt

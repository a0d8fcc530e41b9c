# Two commands do everything, set-up included: `make repro` and `make test`. `make check` is the quick
# part of the tests, for while one works.
PYTHON ?= python3
BIN := $(CURDIR)/.venv/bin
INSTALLED := .venv/installed
RUN := PATH="$(BIN):$$PATH"
PYTEST := OMP_NUM_THREADS=1 pytest -n 2 --dist worksteal

.PHONY: repro check test gpu-test lint constraints

repro: $(INSTALLED)
	$(RUN) hcl settings
	$(RUN) dvc repro
	@echo; cat report/headline.txt; echo "Report: $(CURDIR)/report/index.html"

check: $(INSTALLED) lint
	$(RUN) $(PYTEST) -m "not slow" --durations 3

test: $(INSTALLED) lint
	$(RUN) $(PYTEST)

# What only a GPU can show: see docs/gpu.md.
gpu-test: $(INSTALLED)
	@$(RUN) python -m benchmarks.gpu_check

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
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --config-settings editable_mode=compat --editable '.[dev,backbones]'
	@touch $@

# After a change of dependencies: install without pins in a new .venv, run the tests, then this.
constraints: $(INSTALLED)
	$(BIN)/pip freeze --exclude-editable > constraints.txt

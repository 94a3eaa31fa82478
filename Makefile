# Two commands do everything on a fresh Debian machine with Python 3.11: `make core` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
export OMP_NUM_THREADS = 1

.DEFAULT_GOAL := help
.PHONY: help core smoke test lint format bench tiny clean

help: ## show this help
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

core: $(INSTALLED) ## install, then train and evaluate the core suite; prints the leaderboard
	$(BIN)/python -m harness.run --suite core

smoke: $(INSTALLED) ## the whole pipeline in miniature, under two minutes after installation
	$(BIN)/python -m harness.run --suite smoke

test: $(INSTALLED) ## run the tests
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

lint: $(INSTALLED) ## style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED) ## put the source into its standard form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED) ## speed on this machine, beside the peers that are installed; writes benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.training

tiny: $(INSTALLED) ## rebuild the embedded checkpoints from the solvers' demonstrations
	$(BIN)/python -m ragen_algos.tiny.build

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed (try: make PYTHON=python3.11 ...)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "Python's venv module is missing: apt-get install python3-venv"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	@touch $@

clean: ## remove the virtual environment and caches; results stay
	rm -rf $(VENV) .peers build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# make test    lint the code, run the tests        make demo    convert a checkpoint for four ranks, verify it
# make lint    lint the code and the specs         make setup   only the environment     make clean   remove what make made
#
# Each does its own set-up: .venv from PYTHON, with the versions of constraints.txt. It is done once, and again when
# pyproject.toml or constraints.txt change. For another Python: make clean test PYTHON=python3.13

PYTHON ?= python3
VENV   ?= .venv
JOBS   ?= 2

BIN   := $(VENV)/bin
READY := $(VENV)/.ready
PIP   := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
TORCH_INDEX := https://download.pytorch.org/whl/cpu
SERVER := yaml-language-server@1.25.0

.PHONY: setup lint test demo clean

setup: $(READY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/layoutdsl lint

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -n $(JOBS)

demo: $(READY)
	rm -rf build/demo
	$(BIN)/layoutdsl inspect tests/fixtures/qwen3_moe_w4a16 --tp 4
	$(BIN)/layoutdsl convert tests/fixtures/qwen3_moe_w4a16 build/demo --tp 4
	$(BIN)/layoutdsl verify build/demo --against tests/fixtures/qwen3_moe_w4a16
	$(BIN)/layoutdsl show marlin_int4_a16 --svg build/demo/marlin_int4_a16.svg

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis

# torch first, and by itself: from pip's own sources, or else from PyTorch's index (constraints.txt says why).
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "layoutdsl needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=python3.12")'
	@echo "setting up $(VENV), about a minute"
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-deps torch 2>/dev/null || $(PIP) --no-deps --extra-index-url $(TORCH_INDEX) torch || \
	    { echo "the torch that constraints.txt asks for is not within reach: its first lines tell where it comes from"; exit 1; }
	$(PIP) --editable '.[dev]'
	@npm install --silent --no-save --fetch-retries=1 --prefix $(VENV) $(SERVER) 2>/dev/null \
	    || echo "without $(SERVER) from npm: tests/test_editor.py is skipped"
	@touch $@

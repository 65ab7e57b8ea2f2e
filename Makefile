# make demo: sgtop on a real SGLang server with a tiny model, from nothing.   make test: every check and test.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SHELL := /bin/bash

.PHONY: demo test check pytest docs venv

demo:
	@$(PYTHON) -c 'import sys; sys.exit("sgtop needs Python 3.10 or later" if sys.version_info < (3, 10) else 0)'
	@$(PYTHON) -m tools.demo

test: check pytest

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m sgtop_agent.wire | diff -u docs/wire.md -

pytest: venv
	$(BIN)/python -m pytest

# The generated pages of docs/.
docs: venv
	$(BIN)/python -m sgtop_agent.wire > docs/wire.md
	$(BIN)/python -m sgtop_tui.docs docs
	$(BIN)/python -m tests.tui.images

venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml agent/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ./agent -e '.[dev]'
	touch $@

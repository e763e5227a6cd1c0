# make demo · make test · make check · make bench · make dist.  Each makes its own .venv on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check format bench dist clean

demo: .venv/.run
	@$(BIN)/router demo

test: .venv/.test
	@$(BIN)/python -m pytest -q

check: .venv/.test
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: .venv/.test
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: .venv/.test
	@$(BIN)/python bench/decision.py
	@$(BIN)/python bench/placement.py
	@$(BIN)/python bench/index_memory.py
	@$(BIN)/python bench/kv_ingest.py
	@$(BIN)/python bench/compare_policies.py

dist: .venv/.test
	@$(BIN)/python -m build

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "prefix-router needs Python 3.11 or newer; set PYTHON=")'
	@$(PYTHON) -m venv .venv

.venv/.run: pyproject.toml | .venv/bin/python
	@echo "setting up .venv (once) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[fast]'
	@touch $@

.venv/.test: pyproject.toml | .venv/bin/python
	@echo "setting up .venv with test tools (once) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[fast,test,check]'
	@touch $@ .venv/.run

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

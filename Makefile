PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo study test slow lint clean

# The environment is made anew only when what it is made from changes.
.venv/.done: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("headway needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: .venv/.done
	$(BIN)/headway demo --out runs/demo

study: .venv/.done
	$(BIN)/headway compare studies/quick.yaml --out runs/quick --jobs 2

# Two workers of one thread each: more threads than cores is several times slower than fewer.
test: .venv/.done lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'not slow'

slow: .venv/.done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow

lint: .venv/.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache

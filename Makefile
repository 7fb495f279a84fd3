# Every target installs what it needs first; nothing outside this folder is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: setup demo test test-long lint format bench clean

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headrace needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; try: make setup PYTHON=python3.11")'
	@echo "Installing Headrace and its tools into $(VENV): a few minutes the first time (Spark is large), seconds afterwards"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
	@echo "Ready. Next: make demo, or $(BIN)/headrace --help"

demo: $(INSTALLED)
	@$(BIN)/python examples/fraud_demo.py

# Two files at once: tests spend most of their time waiting. Long ones load the machine by themselves.
test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not long" -n 2 --dist loadfile --no-loadscope-reorder

test-long: $(INSTALLED)
	$(BIN)/python -m pytest -m long

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/phrases.py

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.broker $(BENCH)
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.operators
	$(BIN)/python -m benchmarks.nexmark

clean:
	rm -rf $(VENV) .build .mypy_cache .ruff_cache .hypothesis .import_linter_cache

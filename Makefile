# Every target installs what it needs first. Outside this folder only the cache folder is written: Spark's jars, and Java if
# there is none.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
JAVA := $(VENV)/.java

LOWEST := .build/lowest

.PHONY: setup demo test test-long test-lowest lint format bench clean

setup: $(INSTALLED) $(JAVA)
	@echo "Ready. Next: make demo, or $(BIN)/headrace --help"

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headrace needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; try: make setup PYTHON=python3.11")'
	@echo "Installing Headrace and its tools into $(VENV): a few minutes the first time (Spark is large), seconds afterwards"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# Spark needs Java 17 or newer; where none is found, one is unpacked into the cache folder.
$(JAVA): $(INSTALLED)
	@$(BIN)/headrace doctor --install-java
	@touch $@

demo: $(JAVA)
	@$(BIN)/python examples/fraud_demo.py

# Two files at once: tests spend most of their time waiting. Long ones load the machine by themselves.
test: $(JAVA)
	$(BIN)/python -m pytest -m "not long" -n 2 --dist loadfile --no-loadscope-reorder

test-long: $(JAVA)
	$(BIN)/python -m pytest -m long

# The lower bounds in pyproject.toml, installed together: run it when a bound or a use of a dependency changes.
test-lowest: $(JAVA)
	$(PYTHON) -m venv --clear $(LOWEST)
	$(PYTHON) -c 'import re, tomllib; print(*(re.sub(">=([^,]+).*", r"==\1", line) for line in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]), sep="\n")' > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --disable-pip-version-check -q -r $(LOWEST)/lowest.txt -e . pytest pytest-timeout hypothesis pydantic
	$(LOWEST)/bin/python -m pytest tests/topology tests/operators tests/clients tests/tables/test_views.py tests/engine/test_rows.py tests/testing tests/cli

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/phrases.py

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(JAVA)
	$(BIN)/python -m benchmarks.broker $(BENCH)
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.operators
	$(BIN)/python -m benchmarks.nexmark
	$(BIN)/python -m benchmarks.queues
	$(BIN)/python -m benchmarks.capture

clean:
	rm -rf $(VENV) .build .mypy_cache .ruff_cache .hypothesis .import_linter_cache

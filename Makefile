# Two commands are all a fresh machine needs: make demo, make test. Both make and reuse .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
DOCS := $(VENV)/.ready-with-docs
FULL := $(VENV)/.ready-with-extras
EXTRAS := dev,docs,flower,export,track,browser,privacy
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
INSTALL := $(PIP) --no-build-isolation # built by the setuptools whose hash was compared

PROSE := README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs src examples benchmarks Makefile .ci .github

HASHES ?= yes
HASHED := test "$(HASHES)" = no || $(BIN)/python .ci/supply.py install

# the tests start hundreds of processes: each reads the bytecode that the first one wrote, where the machine says no too
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow mutate faults fuzz lint types bench bench-full hashes licences audit docs release clean

$(STAMP): pyproject.toml constraints.txt requirements.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(HASHED) requirements.txt
	@$(PIP) setuptools
	$(INSTALL) -e '.[dev]'
	@touch $(STAMP)

$(DOCS): $(STAMP) requirements-docs.txt
	@$(HASHED) requirements-docs.txt
	$(INSTALL) -e '.[dev,docs]'
	@touch $(DOCS)

$(FULL): $(DOCS) requirements-extras.txt
	@$(HASHED) requirements-extras.txt
	$(INSTALL) -e '.[$(EXTRAS)]'
	@touch $(FULL)

demo: $(STAMP) ## the main job on embedded data: eight methods on a long-tailed federation of digits
	@$(BIN)/polyfed compare examples/demo.yaml

test: $(STAMP) ## the fast tests
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal

test-slow: $(FULL) ## random kills, Ray, deployment, browser, README commands
	$(BIN)/python -m pytest -m "slow or extras" -n 2 --dist loadfile

mutate: $(STAMP) ## whether the tests notice single wrong lines, half an hour; stopped, it goes on where it was
	$(BIN)/python -m tests.mutations

faults: $(STAMP) ## every write, sync, rename, send and receive of a small run fails once in every way
	$(BIN)/python tests/faults.py

MINUTES ?= 60
fuzz: $(STAMP) ## hostile configs, runs, data, messages and sites; stopped, it goes on; what it finds is in build/fuzz
	$(BIN)/python tests/fuzz.py --minutes $(MINUTES)

lint: $(STAMP) ## style, docstrings of the public surface, and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell $(PROSE)

types: $(FULL)
	$(BIN)/mypy

bench: $(STAMP) ## speed as ratios within one run: polyfed, the limit, pfl and whole runs, about ten minutes
	$(BIN)/python -m benchmarks --again

bench-full: $(STAMP) ## all cells and rivals, at most an hour; stopped, it goes on where it was
	$(BIN)/python -m benchmarks --full

hashes: $(FULL) ## the hashes of every version in constraints.txt, from the package index
	$(BIN)/python .ci/supply.py hashes

licences: $(FULL) ## every installed package with its licence
	$(BIN)/python .ci/supply.py licences

audit: $(STAMP) ## what is known against the pinned versions, where an advisory service can be asked
	@test -x build/audit/bin/pip-audit || { $(PYTHON) -m venv build/audit && \
	  build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit; } || true
	build/audit/bin/python .ci/supply.py audit

docs: $(DOCS) ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

release: $(STAMP) ## wheel and sdist in dist/, each installed into an empty environment and tried there
	$(BIN)/python .ci/release.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis

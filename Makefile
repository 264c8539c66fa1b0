# Everything runs in .venv, which `make install` makes; nothing else on the machine is changed but the cache
# folder of the Delta jars and the class archive (~/.cache/airflow_merge_provider, or $AIRFLOW_MERGE_PROVIDER_CACHE).

SHELL := /bin/bash
# A notice of the theme about its next major version, which is not used.
export NO_MKDOCS_2_WARNING := 1
# Tests start some hundred processes of Python, each of which would compile the package.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help install demo ui test coverage test-e2e test-long test-matrix quick lint house docs site site-serve site-publish dist \
	need-repo-url release-check changelog fix bench campaign clean

PYTHON ?= $(firstword $(foreach name,python3 python3.11 python3.12 python3.13,$(shell $(name) -c \
	'import sys; 0x30b <= sys.hexversion >> 16 < 0x30e and print("$(name)")' 2>/dev/null)))
BIN := $(CURDIR)/.venv/bin
STAMP := .venv/installed
ARGS ?=
WORKERS ?= 3
BENCH ?= merge_source_first_run
MINUTES ?= 5
STORE ?= local
# A file's tests stay in one process; files that take long come first. On two cores a third worker uses the time in
# which the others wait.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# What a release is made with, and the new environment in which its wheel is tried.
RELEASE_TOOLS := build check-wheel-contents cyclonedx-bom hatchling pip-licenses twine uv
TOOLS := .release/tools/bin
TOOLS_STAMP := .release/tools/installed
CLEAN := $(CURDIR)/.release/clean
IN_CLEAN := cd $(CLEAN) && env -u PYTHONPATH AIRFLOW_HOME=$(CLEAN)/airflow AIRFLOW__MERGE__WAREHOUSE=$(CLEAN)/warehouse
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' airflow_merge_provider/__init__.py)
TAG ?= v$(VERSION)

define NEED_JAVA
import sys
from airflow_merge_provider.spark_process.jvm import jars
try:
    jars.find_java()
except jars.SetupError as error:
    sys.exit(str(error))
endef
export NEED_JAVA

help:  ## Say what there is
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
		printf '  make %-13s %s\n' "$$name" "$$text"; done

install: $(STAMP)  ## Make .venv with everything in it, fetch the Delta jars, and prepare fast starts of Spark

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python is missing: install Python 3.11, 3.12 or 3.13, or set PYTHON" >&2; exit 1; }
	@$(PYTHON) -c "$$NEED_JAVA"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[spark,s3,openlineage,examples,docs,dev]'
	$(BIN)/python -m airflow_merge_provider prepare
	@touch $@

demo: $(STAMP)  ## Run the example DAGs in a real Airflow over real data, and show what they did (STORE=s3: on S3)
	@cd dags && $(BIN)/python -m demo run --store $(STORE)

ui: $(STAMP)  ## Start that Airflow with its runs and print its address (Ctrl-C stops it)
	@cd dags && $(BIN)/python -m demo ui --store $(STORE)

test: $(STAMP)  ## Run every test but those of test-e2e and test-long (20 minutes on two cores; ARGS="-k words" picks some)
	$(PYTEST) --durations=15 -m "not e2e and not long" $(ARGS)

coverage: $(STAMP)  ## Run the tests of make test, and fail if they run less than 92 % of the branches
	$(PYTEST) --cov --cov-report=term -m "not e2e and not long"

# Each worker may have a scheduler, a database and a Spark of its own.
test-e2e: WORKERS = 2
test-e2e: $(STAMP)  ## Run the tests with schedulers, PostgreSQL, a Spark cluster and killed processes (30 minutes)
	$(PYTEST) -v --durations=15 -m "e2e" tests $(ARGS)

test-long: $(STAMP)  ## Run the tests of many runs, of which make test has shorter ones (25 minutes)
	$(PYTEST) --durations=15 -m "long and not e2e" tests $(ARGS)

test-matrix: $(STAMP) $(TOOLS_STAMP)  ## Run the quick tests on each Python, and jobs on each Python, Java and Spark (ARGS="--spark 4.1")
	PATH="$$PATH:$(CURDIR)/$(TOOLS)" $(BIN)/python -m tests.matrix $(ARGS)

quick: $(STAMP)  ## Run the tests that need neither Spark nor Airflow's database (two minutes)
	$(PYTEST) -q -m "not spark and not airflow and not e2e and not long" $(ARGS)

# With --quiet, mkdocs does not count warnings, and its strict mode has no effect.
lint: $(STAMP)  ## Check style, types, imports, spelling, Markdown, workflows and links, and print the size of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/typos
	$(BIN)/pymarkdown scan -r *.md docs .github
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --offline --quiet --pedantic .github
	$(BIN)/towncrier build --draft --version next > /dev/null
	@$(MAKE) --no-print-directory house
	$(BIN)/mkdocs build

house: $(STAMP)  ## Print how large and how connected the package is
	@$(BIN)/python -m tests.architecture.house

docs: $(STAMP)  ## Write the parts of the pages that come from the code
	$(BIN)/python docs/generate.py

site: $(STAMP)  ## Build the documentation site into site; a broken link is an error
	$(BIN)/mkdocs build

site-serve: $(STAMP)  ## Show the documentation site at http://127.0.0.1:8000 while you write (Ctrl-C stops it)
	$(BIN)/mkdocs serve

site-publish: $(STAMP) need-repo-url  ## Publish the site of this version on the branch gh-pages (needs REPO_URL)
	PATH="$(BIN):$$PATH" REPO_REF="$(TAG)" $(BIN)/mike deploy --push --update-aliases "$(VERSION)" latest
	$(BIN)/mike set-default --push latest

dist: $(STAMP) $(TOOLS_STAMP)  ## Build the sdist, and from it the wheel, into dist, with the log store for S3 compiled from its source
	rm -rf dist
	$(BIN)/python -m airflow_merge_provider.spark_process.jvm.log_store.jar
	$(TOOLS)/python -m build --no-isolation --quiet

$(TOOLS_STAMP): constraints.txt
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(TOOLS)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(RELEASE_TOOLS)
	@touch $@

need-repo-url:
	@test -n "$(REPO_URL)" || { echo "REPO_URL: is not set (set it to the address of the repository)" >&2; exit 1; }

release-check: need-repo-url dist  ## Check dist, its dependencies and licences, and try the wheel in a new environment (needs REPO_URL)
	$(BIN)/python -m tests.release.readiness dist "$(TAG)"
	$(TOOLS)/twine check --strict dist/*
	$(TOOLS)/check-wheel-contents dist/*.whl
	rm -rf $(CLEAN) && mkdir -p $(CLEAN)/warehouse
	$(PYTHON) -m venv $(CLEAN)/venv
	$(CLEAN)/venv/bin/python -m pip install --quiet --disable-pip-version-check "$$(echo dist/*.whl)[spark,s3,azure,gcs,openlineage]"
	$(CLEAN)/venv/bin/python -m pip check
	$(TOOLS)/pip-licenses --python=$(CLEAN)/venv/bin/python --summary
	$(TOOLS)/cyclonedx-py environment $(CLEAN)/venv/bin/python --output-reproducible \
		--output-file .release/airflow_merge_provider-$(VERSION).cdx.json
	$(IN_CLEAN) venv/bin/airflow providers get airflow-merge-provider
	$(IN_CLEAN) venv/bin/airflow_merge_provider doctor
	RELEASE_ENVIRONMENT=$(CLEAN)/venv $(BIN)/python -m pytest tests/release

changelog: $(STAMP)  ## Write the section of this version into CHANGELOG.md from the files in changelog.d
	$(BIN)/towncrier build --yes --version "$(VERSION)"

fix: $(STAMP)  ## Mend what can be mended by a program
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## Measure a job against another solution of its task (BENCH=merge_source_first_run)
	$(BIN)/python -m benchmarks.$(BENCH) $(ARGS)

campaign: $(STAMP)  ## Try what nobody would write, for some minutes (MINUTES=5); seeds of failures are printed
	$(BIN)/python -m tests.campaigns --minutes $(MINUTES) $(ARGS)

clean:  ## Remove what make demo made, so that it starts afresh
	rm -rf .demo

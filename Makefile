# `make help` lists the targets. Everything that is made lives in $GAUDI_SERVE_CACHE
# (default ~/.cache/gaudi-serve), keyed by what it is made from; `make clean` removes it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
VENV = $(shell scripts/environment)
RUN = PATH="$(VENV)/bin:$$PATH"
TESTHOSTS = molecule/shared/testhosts
CACHE = $(or $(GAUDI_SERVE_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gaudi-serve)
# Python compiles each file once, also where its user lets it write nothing beside the source.
export PYTHONPYCACHEPREFIX = $(CACHE)/pycache
unexport PYTHONDONTWRITEBYTECODE

# The daily loop uses two processors.
ifeq ($(sort $(MAKECMDGOALS)),lint unit)
MAKEFLAGS += --jobs=2 --output-sync=target
endif

.PHONY: help deps demo-deps demo demo-stop test test-all lint unit molecule docs collection bench clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## Install what the machine lacks (Debian and Ubuntu, as root or with sudo)
	@scripts/deps

demo-deps:
	@scripts/deps demo

demo: demo-deps ## Make two hosts, serve models on them, ask one a question
	@PATH="$$(scripts/environment controller)/bin:$$PATH" scripts/demo

demo-stop: ## Stop and remove the demo's hosts
	@PATH="$$(scripts/environment controller)/bin:$$PATH" scripts/demo --stop

test: deps ## The gate: lint, unit tests, and the main job for real (25 minutes)
	@$(RUN) scripts/test gate

test-all: deps ## Everything, each scenario and the long tests among it (two hours)
	@$(RUN) scripts/test all

lint: ## ansible-lint, yamllint, ruff, mypy
	@$(RUN) scripts/test lint

unit: ## Tests of filters, modules and stand-ins
	@$(RUN) python tests/alone.py 2

molecule: deps ## The molecule scenarios: make molecule SCENARIOS="host"
	@$(RUN) scripts/test $(or $(SCENARIOS),molecule)

docs: ## Build the documentation as a site in site/, which a browser opens from the disk
	@$(RUN) sphinx-build --builder html --quiet --fail-on-warning --keep-going --doctree-dir site/.doctrees docs site
	@echo "site/index.html"

collection: ## Build the collection gaudi.serve in dist/
	@$(RUN) scripts/collection

bench: ## Figures, as ratios in one run; fails on nothing
	@$(RUN) scripts/bench

clean: ## Remove hosts, images, archives and the environment, and give the kernel its old values back
	@$(TESTHOSTS) clean
	@rm -rf "$(CACHE)"/venv-* "$(CACHE)"/monitoring-tools-* "$(CACHE)"/pycache "$(CACHE)"/*.lock "$(CACHE)"/engine.log
	@[ ! -d "$(CACHE)" ] || rmdir --ignore-fail-on-non-empty "$(CACHE)"
	@rm -rf site dist .ansible .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .molecule

# Every target does its own set-up. `make run` and `make test` are all that a newcomer needs.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
MANISKILL := .venv/.maniskill
ROBOTS := .venv/.robots

.DEFAULT_GOAL := help
.PHONY: help run test setup check format bench learn maniskill test-maniskill robots test-robots clean

help: ## Show this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

run: setup ## Teach a robot to push a cube by pictures alone, and write a report (about four minutes)
	$(BIN)/plaudit run

test: setup ## Run the tests
	@sh scripts/browser.sh
	$(BIN)/pytest -n 2

setup: $(READY) ## Only the set-up: .venv, pinned packages, OpenGL libraries
	@sh scripts/opengl.sh

$(READY): pyproject.toml setup.py constraints.txt src/plaudit/rl/accel/_kernels.c
	$(PYTHON) -m venv .venv
	@rm -f src/plaudit/rl/accel/_kernels*.so  # One of before would stay where a new one cannot be compiled.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

check: setup ## Lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## Measure speed against the limit and the peers (about ten minutes)
	$(BIN)/plaudit bench

learn: setup ## The long learning runs, three seeds each, with a table at the end
	$(BIN)/python benchmarks/learn.py
	$(BIN)/python benchmarks/taught.py --folder outputs/taught

maniskill: setup $(MANISKILL) ## Also ManiSkill 3, with a Vulkan driver that needs no GPU
	@sh scripts/vulkan.sh $(BIN)/python

$(MANISKILL): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[maniskill]'
	@touch $(MANISKILL)

test-maniskill: maniskill ## Run the tests that need ManiSkill
	PLAUDIT_TEST_MANISKILL=1 $(BIN)/pytest -n 2 --dist loadfile tests/envs/test_maniskill.py tests/test_guides.py -k maniskill

robots: setup $(ROBOTS) ## Also gymnasium-robotics, Meta-World and gym-hil

$(ROBOTS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[robots]'
	@touch $(ROBOTS)

test-robots: robots ## Run the tests that need them (some minutes)
	PLAUDIT_TEST_ROBOTS=1 $(BIN)/pytest tests/envs/test_foreign_envs.py

clean: ## Remove the .venv and caches
	rm -rf src/plaudit/rl/accel/_kernels*.so build .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

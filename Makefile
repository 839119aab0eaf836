.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Empty: the ordinary index. A URL here points pip at the CPU or at a CUDA build of the pinned torch.
TORCH_INDEX ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help install demo stop check format test faults soak benchmark e2e-compose clean

help: ## print this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 14

install: $(VENV)/.installed ## make .venv with the pinned versions

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --editable '.[development]'
	@touch $@

demo: install ## train four clients over loopback and leave them answering
	$(BIN)/lpsfed demo --keep

stop: install ## end the services that `make demo` left running
	$(BIN)/lpsfed demo --stop

check: install ## lint, types, architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_architecture.py

format: install ## rewrite the code in the house's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: install ## run the tests
	$(BIN)/pytest -n 2

faults: install ## kill, cut off and misuse the services in every way that is known, about ten minutes
	$(BIN)/pytest -n 2 -m 'slow or not slow' tests/faults tests/web/test_described.py tests/aggregator_service/test_federation_machine.py

soak: install ## fifty clients for two hundred rounds, and updates of 64 MB; prints the figures
	$(BIN)/pytest -m slow -s tests/soak

benchmark: install ## measure NAME=table1 [QUICK=1] [DATA=folder] [ONLY=row]; NAME=report writes docs/results.md
	$(BIN)/python -m benchmarks $(or $(NAME),--all --quick) $(if $(QUICK),--quick) $(if $(DATA),--data '$(DATA)') $(if $(ONLY),--only '$(ONLY)')

e2e-compose: install ## build and run docker-compose.yml for real; skipped where no Docker engine answers
	$(BIN)/pytest -m containers -rs -s tests/containers

clean: ## remove what was built, not what was measured
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info

.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Which build of the pinned torch, and one more place where pip looks for it: requirements/install_torch.sh.
TORCH_BUILD ?= cpu
TORCH_INDEX ?=
# Of `make lock` and what looks at the locks: in a place of their own, never in .venv nor in an image.
SUPPLY := build/supply-chain
UPGRADE ?=
# Of `make images`.
PLATFORMS ?= linux/amd64,linux/arm64
REGISTRY ?=
LOCK := $(SUPPLY)/bin/uv pip compile --quiet --python $(SUPPLY)/bin/python --universal --python-version 3.11 \
	--generate-hashes --no-strip-markers --no-annotate --no-emit-package torch --custom-compile-command 'make lock' \
	$(if $(UPGRADE),--upgrade)
# The same packages give the same bytes. The tool's own check of its output takes ten times as long as writing it.
PLAIN := --output-reproducible --no-validate
SBOM := $(SUPPLY)/bin/python -W ignore -m cyclonedx_py
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# What training finds differs in the last digits between processors. These tests train, and hold one run against another.
TRAINING_TESTS := tests/system/client_service/federation/test_killed.py tests/service/client_service/federation/test_agent.py \
	$(foreach level,unit service system,$(wildcard tests/$(level)/client_service/secure_rounds tests/$(level)/strategies)) \
	tests/service/simulation/test_secure_run.py tests/unit/equations

# Tests that `make check` runs. With CHECKED=1 `make test` leaves them out, because they have just run.
CHECKS := $(addprefix tests/unit/project/test_,architecture.py plain_english.py names_in_docstrings.py)
CHECKED ?=

# A test that takes five minutes hangs: it ends with the line that it waits at, and fails.
LIMIT := -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

# As many as a small machine has cores. One more is a tenth faster there.
WORKERS ?= 2

# The workers share the cores already, and many processes are started: none spins threads, and each file is compiled once.
TESTING := test test-fast test-system rounding faults faults-of-workers engines engine-ray engine-flower storage
$(TESTING) generated-client e2e-compose: export OMP_NUM_THREADS := 1
$(TESTING) check guard generated-client e2e-compose: export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install demo stop check format test test-fast test-system rounding faults faults-of-workers engines engine-ray engine-flower storage generated-client environments soak nightly benchmark guard \
	e2e-compose site notebook dist lock sbom audit platforms images base-digest clean

help: ## print this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 14

install: $(VENV)/.installed ## make .venv with the pinned versions, each held to its hash

# Torch alone comes without a hash: which build it is depends on the index. What all its builds need is in the lock, so
# that its step adds nothing but torch and, with a CUDA build, the libraries of that build.
# All cores compile what pip has put there: pip itself uses one.
$(VENV)/.installed: export PIP_COMPILE := 0
$(VENV)/.installed: pyproject.toml requirements/development.txt requirements/torch.txt requirements/install_torch.sh
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes --only-binary :all: --requirement requirements/development.txt
	TORCH_BUILD=$(TORCH_BUILD) TORCH_INDEX=$(TORCH_INDEX) sh requirements/install_torch.sh $(BIN)/pip
	$(BIN)/pip install --quiet --no-index --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@

demo: install ## train four clients over loopback and leave them answering; TASK=sessions, TASK=nodes: of visits, of graphs
	$(BIN)/lpsfed demo --keep $(if $(TASK),--task $(TASK))

stop: install ## end the services that `make demo` left running
	$(BIN)/lpsfed demo --stop

check: install ## lint, types, architecture, plain English
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy
	$(BIN)/pytest $(CHECKS)

format: install ## rewrite the code in the house's format, and the Python client's awaitable twin
	$(BIN)/python requirements/make_async_client.py
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: install ## run the tests that need no process but their own
	$(BIN)/pytest -n $(WORKERS) --dist worksteal $(LIMIT) tests/unit tests/service $(if $(CHECKED),$(addprefix --ignore=,$(CHECKS)))

test-fast: install ## run those that start no service, in less than a minute
	$(BIN)/pytest -n 2 --dist worksteal $(LIMIT) tests/unit

test-system: install ## run those that start processes or a browser, or kill a service
	$(BIN)/pytest -n $(WORKERS) --dist worksteal $(LIMIT) tests/system

rounding: install ## run the tests that train as two other processors would round
	OPENBLAS_CORETYPE=Haswell ATEN_CPU_CAPABILITY=avx2 $(BIN)/pytest -n 2 --dist worksteal $(TRAINING_TESTS)
	OPENBLAS_CORETYPE=Zen ATEN_CPU_CAPABILITY=default $(BIN)/pytest -n 2 --dist worksteal $(TRAINING_TESTS)

faults: install ## kill, cut off and misuse the services in every way that is known, about ten minutes
	$(BIN)/pytest -n 2 --dist worksteal -m "slow and not containers" tests/service tests/system --ignore tests/system/soak

faults-of-workers: .venv-storage/.installed ## kill workers of one aggregator at every step, on PostgreSQL and S3, about half an hour
	.venv-storage/bin/python -m pytest -rs -m slow tests/system/aggregator_service/servers

engines: engine-ray engine-flower ## run the tests of Ray and of Flower, each in an environment of its own

engine-ray: .venv-ray/.installed ## federations and benchmark cells over a local Ray cluster of two nodes
	.venv-ray/bin/python -m pytest tests/system/simulation/engines/test_ray.py tests/system/benchmarks/test_cluster.py

# The command line's library is older there, and tells of what the next version of another one will not have; and Ray
# leaves files open, which are found at the end.
engine-flower: .venv-flower/.installed ## the Flower app in Flower's simulation
	.venv-flower/bin/python -m pytest -W default::DeprecationWarning -W default::ResourceWarning tests/system/simulation/engines/test_flower.py

storage: .venv-storage/.installed ## run the tests of PostgreSQL and S3, in an environment of their own; -rs says what is skipped
	.venv-storage/bin/python -m pytest -rs tests/system/aggregator_service/servers

generated-client: install .venv-generator/.installed ## make clients from both OpenAPI documents by a public generator, and use them
	$(BIN)/pytest -rs tests/system/web/test_generated_client.py

# Of other packages' versions than development's, and without this one: a generated client needs none of ours.
.venv-generator/.installed: requirements/generator.txt
	$(PYTHON) -m venv --clear .venv-generator
	.venv-generator/bin/pip install --quiet --no-compile --require-hashes --only-binary :all: --requirement $<
	@touch $@

environments: $(foreach one,ray flower storage site generator,.venv-$(one)/.installed) ## make the environments of engines, storage, site, generated-client

.venv-%/.installed: requirements/%.txt requirements/torch.txt requirements/make_engine_environment.sh pyproject.toml
	TORCH_BUILD=$(TORCH_BUILD) TORCH_INDEX=$(TORCH_INDEX) sh requirements/make_engine_environment.sh $* $(PYTHON)

soak: install ## fifty clients for two hundred rounds, and updates of 64 MB; prints the figures
	$(BIN)/pytest -m slow -s tests/system/soak

nightly: ## what CI runs once a day: every fault, rounding, the tutorial, long runs, packages; more than an hour
	.ci/nightly

benchmark: install ## measure NAME=table1 [QUICK=1] [DATA=folder] [ONLY=row]; NAME=report writes build/results/tables.md
	$(BIN)/python -m benchmarks $(or $(NAME),--all --quick) $(if $(QUICK),--quick) $(if $(DATA),--data '$(DATA)') $(if $(ONLY),--only '$(ONLY)')

guard: install ## measure the main costs against committed ratios, about a minute; WRITE=1 commits what it finds
	$(BIN)/python -m benchmarks guard $(if $(WRITE),--write)

e2e-compose: install ## build and run docker-compose.yml for real; ALL=1 makes every break too; skipped without a Docker engine
	$(BIN)/pytest -m "containers$(if $(ALL),, and not slow)" -rs -s tests/system/containers

site: .venv-site/.installed ## write build/site: the documentation with a reference made from the code; links are checked
	PYTHONPATH=. .venv-site/bin/python docs/site/stage.py build/site-source
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --strict

notebook: .venv-site/.installed ## run docs/tutorial.ipynb from its beginning; build/tutorial has the outputs, and `make site` shows them
	.venv-site/bin/python docs/site/execute.py docs/tutorial.ipynb build/tutorial/tutorial.ipynb

dist: install ## write build/dist: the package as a wheel and as a source archive
	$(BIN)/python requirements/make_dist.py build/dist

lock: $(SUPPLY)/.installed ## write requirements/*.txt anew from pyproject.toml; UPGRADE=1 takes newer versions
	$(LOCK) --extra development pyproject.toml --output-file requirements/development.txt
	$(LOCK) --extra aggregator --constraint requirements/development.txt pyproject.toml --output-file requirements/aggregator.txt
	$(LOCK) --extra client --constraint requirements/development.txt pyproject.toml --output-file requirements/client.txt
	$(LOCK) --extra simulation --constraint requirements/development.txt pyproject.toml --output-file requirements/tools.txt
	$(LOCK) --extra ray --constraint requirements/development.txt pyproject.toml requirements/engines.in --output-file requirements/ray.txt
	$(LOCK) --extra flower --fork-strategy fewest pyproject.toml requirements/engines.in --output-file requirements/flower.txt
	$(LOCK) --extra storage --constraint requirements/aggregator.txt --constraint requirements/client.txt pyproject.toml --output-file requirements/aggregator-storage.txt
	$(LOCK) --extra simulation --extra storage --constraint requirements/client.txt --constraint requirements/aggregator-storage.txt pyproject.toml requirements/engines.in requirements/storage.in --output-file requirements/storage.txt
	$(LOCK) --extra simulation --constraint requirements/tools.txt pyproject.toml requirements/engines.in requirements/site.in --output-file requirements/site.txt
	$(LOCK) requirements/generator.in --output-file requirements/generator.txt
	$(LOCK) requirements/supply-chain.in --output-file requirements/supply-chain.txt
	grep -oE 'torch==[0-9.]+' pyproject.toml > requirements/torch.txt

$(SUPPLY)/.installed: requirements/supply-chain.txt
	$(PYTHON) -m venv $(SUPPLY)
	$(SUPPLY)/bin/pip install --quiet --require-hashes --only-binary :all: --requirement $<
	@touch $@

sbom: install $(SUPPLY)/.installed ## write build/sbom: what is in each image and in .venv (CycloneDX)
	@mkdir -p build/sbom
	for image in aggregator client tools; do \
		cat requirements/$$image.txt $$(test $$image = aggregator || echo requirements/torch.txt) | $(SBOM) requirements - $(PLAIN) \
			--pyproject pyproject.toml --output-file build/sbom/$$image.cdx.json || exit 1; done
	$(SBOM) environment $(BIN)/python $(PLAIN) --pyproject pyproject.toml --output-file build/sbom/development.cdx.json

audit: $(SUPPLY)/.installed ## look for known vulnerabilities in all that is locked
	$(SUPPLY)/bin/python requirements/audit.py

platforms: install ## look whether each locked package of the images has a wheel for x86_64 and for aarch64
	$(BIN)/python requirements/check_platforms.py

images: ## build the images for PLATFORMS and push them to REGISTRY=host/path; needs docker buildx
	for image in aggregator client tools; do \
		folder=$$([ $$image = aggregator ] && echo aggregator_service || echo client_service); \
		docker buildx build --platform $(PLATFORMS) --file $$folder/Dockerfile \
			$$([ $$image = aggregator ] || echo --target $$image) --build-arg TORCH_INDEX=$(TORCH_INDEX) \
			--tag $(or $(REGISTRY),$(error REGISTRY: expected one to push to))/lpsfed/$$image:$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) --push . || exit 1; done

base-digest: ## pin the images in .env to the digests that their registry gives today; needs Docker and its registry
	$(PYTHON) requirements/pin_images.py

clean: ## remove what was built, not what was measured
	rm -rf $(VENV) .venv-ray .venv-flower .venv-storage .venv-site build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info

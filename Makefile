# The commands for development. `make up` and `make test` install what they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# For two cores: the tests of crashes wait more than half of their time.
TEST_PROCESSES ?= 5
# Pinned, so that a new rule does not fail an old commit.
REDOCLY := @redocly/cli@2.73.0

# Without compiled modules every process that a test starts would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install install-dev up test test-all test-contract test-kafka test-airflow test-operate test-browser chaos mutants check compose-gateway format bench audit sbom lock clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

install: $(VENV)/.installed ## Create .venv with the command .venv/bin/switchyard

install-dev: $(VENV)/.installed-dev ## The same, with the tools for tests, checks and benchmarks

up: install ## Run everything in one process on embedded defaults
	$(BIN)/switchyard up

test: install-dev ## Run the tests of single parts, and one of processes for each promise; they start PostgreSQL and Redis themselves
	@echo "Left to make test-all: the other tests of processes that are killed, paused and cut off. Left to targets of their own: make test-kafka (a real Apache Kafka, needs Java 17 and Maven), make test-contract (Redocly, needs Node.js), make test-airflow (a real Airflow), make test-operate (alerts, needs Prometheus), make test-browser (the dashboard, needs Chromium), make chaos (longer faults)"
	$(BIN)/python -m pytest --core -n $(TEST_PROCESSES) --dist worksteal $(ARGS)

test-all: install-dev $(VENV)/.installed-generator ## Run all tests that need nothing but PyPI; Kafka is librdkafka's mock cluster
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal $(ARGS)

test-contract: install-dev $(VENV)/.installed-generator ## Lint and test the HTTP contract (needs Node.js 20 or newer)
	$(BIN)/switchyard openapi --format yaml > $(VENV)/openapi.yaml
	REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true npx --yes $(REDOCLY) lint $(VENV)/openapi.yaml
	$(BIN)/python -m pytest -q tests/api/test_contract_files.py tests/api/test_reference.py \
		tests/api/test_generated_client.py $(ARGS)

test-kafka: install-dev $(VENV)/.installed-kafka ## Run the Kafka tests on a real Apache Kafka (needs Java 17 and Maven)
	TEST_KAFKA_LIBS=$(abspath $(VENV))/kafka $(BIN)/python -m pytest tests/kafka tests/kafka/secured_suite.py $(ARGS)

test-operate: install-dev ## Test alert rules, real alerts on killed dependencies, dashboards on the demo (needs Debian's package prometheus)
	@command -v promtool >/dev/null || { echo "promtool is missing: apt-get install prometheus"; exit 1; }
	promtool check config ops/prometheus/prometheus.yml ops/prometheus/prometheus-host.yml
	promtool test rules ops/prometheus/tests/*.yml
	$(BIN)/python -m pytest -q tests/operate $(ARGS)

test-browser: install-dev ## Test the dashboard in a real browser (needs Debian's package chromium)
	$(BIN)/python -m pytest -q tests/browser $(ARGS)

test-airflow: install-dev $(VENV)/.installed-airflow ## Run rechecks by a real Airflow 3 (installs it, about 650 MB)
	$(BIN)/python -m pytest -q tests/e2e/airflow_suite.py $(ARGS)

chaos: install-dev ## Attack real processes with seeded faults: ARGS="--seed 1 --faults 500 --seconds 3600"
	$(BIN)/python -m tests.nemesis $(ARGS)

mutants: install-dev ## Break each rule in a copy of the sources, and see its tests fail: ARGS="-n 2 -k partition"
	$(BIN)/python -m tests.mutants $(ARGS)

check: install-dev ## Check format, lint rules, types and import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

compose-gateway: ## Run gateway (8081), back office (8082), worker, PostgreSQL and Kafka in containers (needs Docker Compose)
	@./ops/make_secrets.sh
	docker compose -f ops/compose.yaml --profile gateway up --build --detach --wait

format: install-dev ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install-dev ## Measure throughput side by side (needs wrk; with the jars of `make test-kafka`, on a real Kafka), or ARGS="--only counts" the work of an order (needs valgrind)
	$(if $(wildcard $(VENV)/.installed-kafka),TEST_KAFKA_LIBS=$(abspath $(VENV))/kafka) $(BIN)/python -m bench $(ARGS)

audit: install-dev ## Look for known vulnerabilities in the locked dependencies (asks the advisory database on the network)
	$(BIN)/pip-audit --strict --require-hashes --disable-pip --progress-spinner off -r requirements.txt $(ARGS)

sbom: install-dev ## Write the software bill of materials of the run-time dependencies (CycloneDX) to build/sbom.json
	@mkdir -p build
	$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --mc-type application --output-reproducible \
		--output-format JSON --output-file build/sbom.json requirements.txt
	@echo "build/sbom.json"

lock: install-dev ## Pin new dependencies; ARGS=--upgrade also upgrades the others
	$(BIN)/uv pip compile -q $(ARGS) --generate-hashes --no-header --no-annotate --universal --python-version 3.11 \
		pyproject.toml -o requirements.txt
	$(BIN)/uv pip compile -q $(ARGS) --generate-hashes --no-header --no-annotate --universal --python-version 3.11 \
		--extra dev pyproject.toml -o requirements-dev.txt
	$(BIN)/uv pip compile -q $(ARGS) --generate-hashes --no-header --no-annotate --universal --python-version 3.11 \
		--group generator -o requirements-generator.txt
	$(BIN)/uv pip compile -q $(ARGS) --generate-hashes --no-header --no-annotate --universal --python-version 3.11 \
		--group airflow -o requirements-airflow.txt

clean: ## Remove the virtual environment and caches (not the data in var/)
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis src/*.egg-info

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Switchyard needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# --no-deps: the files name every package, which `pip check` confirms. Without it, old versions of pip also look at newer
# releases of a package with extras, and stop because those have no hash.
$(VENV)/.installed: $(VENV)/bin/python requirements.txt pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-dev.txt
	$(BIN)/python -m pip check
	@touch $@

# The jars of the broker for `make test-kafka`: 43 MB.
$(VENV)/.installed-kafka: $(VENV)/bin/python tests/kafka/pom.xml
	@command -v java >/dev/null && command -v mvn >/dev/null || \
		{ echo "make test-kafka needs Java 17 and Maven: apt-get install openjdk-17-jre-headless maven"; exit 1; }
	mvn --quiet --batch-mode -f tests/kafka/pom.xml dependency:copy-dependencies -DoutputDirectory=$(abspath $(VENV))/kafka
	@touch $@

# A client generator, for the test that uses a generated client.
$(VENV)/.installed-generator: $(VENV)/bin/python requirements-generator.txt
	$(PYTHON) -m venv $(VENV)/generator
	$(VENV)/generator/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		-r requirements-generator.txt
	$(VENV)/generator/bin/python -m pip check
	@touch $@

# The pinned file takes the place of Airflow's own list of constraints, which is on another host.
$(VENV)/.installed-airflow: $(VENV)/bin/python requirements-airflow.txt
	$(PYTHON) -m venv $(VENV)/airflow
	$(VENV)/airflow/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		-r requirements-airflow.txt
	@touch $@

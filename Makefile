# The verbs of the project. Each makes .venv if there is none; Python (3.10 to 3.13) and make are all that has to be there.
ifndef PYTHON
PYTHON := $(shell .ci/choose-python)
endif
VENV ?= .venv
BIN := $(VENV)/bin
# Newer than pyproject.toml and the constraints: the environment is what they say, and nothing is installed again.
STAMP := $(VENV)/.installed
# The second lane: PySpark 4 and RayDP's pre-release, which cannot be in one environment with PySpark 3.5.
VENV4 ?= .venv-spark4
BIN4 := $(VENV4)/bin
STAMP4 := $(VENV4)/.installed
ARGS ?=

.PHONY: package-test docs scenes demo pipeline test test-long docs-test test-spark4 test-python test-pythons selection smoke kills availability simulate simulate-ci simulate-mutations mutations bench kv-kills venv lint format clean scale deploy-test fuzz screenshots

demo: $(STAMP)
	$(BIN)/waltz demo $(ARGS)

# Appends -> log -> Spark -> files -> streams -> mirror, everything compared: docs/pipeline.md. A million: RECORDS=1000000
RECORDS ?= 100000
pipeline: $(STAMP)
	$(BIN)/waltz pipeline --records $(RECORDS) $(ARGS)

# In two lanes at once (tests/lanes.py); in one process if ARGS names tests.
test: lint
	$(BIN)/python -m tests.lanes $(ARGS)

test-long: $(STAMP)
	$(BIN)/pytest -W error -m long $(ARGS)

# Twelve replicas, six servers, 96 partitions on a Ray of four nodes, minutes; and what grows with clients: docs/performance.md.
CLIENTS ?= 1000
scale: $(STAMP)
	$(BIN)/python -m tests.cluster.growth --clients $(CLIENTS)
	$(BIN)/pytest -W error -q -s -m long tests/cluster/test_scale.py $(ARGS)

# Groups of topics: fifty consumers that come and go, ten times, a minute or two; docs/tubemq.md.
scenes: $(STAMP)
	$(BIN)/pytest -W error -q -m "long or not long" tests/topics/test_scenes_groups.py $(ARGS)

# Every block of Python and of commands in README.md and docs/, as it is written, in a process of its own; also the long ones.
docs-test: $(STAMP)
	$(BIN)/pytest -W error -m "long or not long" tests/docs $(ARGS)

# One Python, in .venv-<version>: PYTHON=python3.12. The selection takes at most three minutes; docs/python.md.
test-python:
	@version=$$("$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])') && \
		$(MAKE) --no-print-directory selection VENV=.venv-$$version PYTHON="$(PYTHON)"

# Every Python of these that is on PATH or pyenv's.
test-pythons:
	@set -e; for version in 3.10 3.11 3.12 3.13; do \
		for python in python$$version "$$HOME"/.pyenv/versions/$$version.*/bin/python; do \
			if "$$python" -c "" 2>/dev/null; then $(MAKE) --no-print-directory test-python PYTHON="$$python"; break; fi; \
		done; \
	done

# Without Ray all but the walks, a few histories, and one test of actors, one of Spark on a Ray.
SELECTION := tests/test_compat.py tests/protocol tests/wire tests/net tests/storage tests/client tests/testing \
	tests/spark/test_ray.py::test_clients_travel_to_actors_and_tasks tests/spark/test_spark.py::test_decoders
selection: $(STAMP)
	$(BIN)/python --version
	$(BIN)/python -W error -m tests.simulation --seeds 10
	$(BIN)/pytest -W error -q -m "not long" -k "not walks" $(SELECTION) $(ARGS)

test-spark4: $(STAMP4)
	$(BIN4)/pytest -W error tests/spark4 $(ARGS)

# Hostile bytes for every decoder, file, node and document; docs/testing.md. SECONDS=600 in all; ARGS="--target segment --keep"
SECONDS ?= 600
fuzz: $(STAMP)
	@$(BIN)/python -c "import atheris" 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[fuzz]"
	nice $(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

# A cluster from its file to its copy: a Ray job, TLS, Prometheus where it is, a rolling upgrade under load, backup, restore; at
# most six minutes.
deploy-test: $(STAMP)
	$(BIN)/pytest -W error -q -rs -m "long or not long" tests/operate/test_whole.py $(ARGS)

# docs/images, of the page that a small cluster's manager serves, by Debian's chromium; a minute.
screenshots: $(STAMP)
	@command -v chromium >/dev/null || { echo "there is no chromium on PATH: apt-get install chromium" >&2; exit 1; }
	$(BIN)/pytest -W error -q tests/operate/test_page_of_cluster.py --rewrite $(ARGS)

# SEEDS=1000 | SEED=0x1f | MUTATE=name (exits 1 when the broken rule is noticed, as it should be) | FIRST=0x400 | JOBS=2
SEEDS ?= 200
simulate: $(STAMP)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(if $(FIRST),--first $(FIRST)) $(if $(SEED),--seed $(SEED)) \
		$(if $(MUTATE),--mutate $(MUTATE)) $(if $(JOBS),--jobs $(JOBS))

# What CI runs: 200 histories, and every rule broken once.
simulate-ci: $(STAMP)
	$(BIN)/python -m tests.simulation --seeds 200
	$(BIN)/python -m tests.simulation --all-mutations

# The same search, and its result into docs/testing.md and known_seeds.py. PART=kv: only those of mutations_kv.py
simulate-mutations: $(STAMP)
	$(BIN)/python -m tests.simulation --all-mutations $(PART) --page docs/testing.md

mutations: $(STAMP)
	@$(BIN)/python -m tests.simulation --mutations

# At most ten minutes on two cores; what it measures: docs/benchmarks.md. The results replace benchmarks/results/latest.*
bench: $(STAMP)
	$(BIN)/waltz bench all --results benchmarks/results $(ARGS)

# Locked transactions from four processes while every kind of process is stopped and started in turn, the rules of the log
# asked of the replicas' files, a full restart, and again: TRANSACTIONS=100000
TRANSACTIONS ?= 1000000
smoke: $(STAMP)
	$(BIN)/waltz bench smoke --transactions $(TRANSACTIONS) $(ARGS)

# Appends beside a kill every 20 s, with a checkpoint every 3,000 transactions; pauses, memory: MINUTES=20
MINUTES ?= 2
kills: $(STAMP)
	$(BIN)/waltz bench kills --minutes $(MINUTES) $(ARGS)

# What is felt when something is killed, hangs or is moved; tries of each event: TRIES=20, at the most five of those that take
# a minute. Three quarters of an hour; docs/availability.md. Replaces benchmarks/results/availability.*
TRIES ?= 20
availability: $(STAMP)
	$(BIN)/waltz bench availability --tries $(TRIES) --results benchmarks/results $(ARGS)

# A log that keeps 16 MB a partition, under load for minutes, everything killed in turn; docs/retention.md. MINUTES=3
retention: $(STAMP)
	$(BIN)/waltz bench retention --minutes $(if $(filter command line,$(origin MINUTES)),$(MINUTES),3) $(ARGS)

# Key/value actors, servers, replicas and the manager of a real cluster stopped and killed under recording clients, also inside
# splits; 10,000 keys overwritten, and written while masks grow to 0xFFF. A quarter of an hour and more.
kv-kills: $(STAMP)
	$(BIN)/pytest -W error -m long tests/kv/test_cluster.py $(ARGS)

# The wheel, in an empty environment, with `waltz up` and `waltz demo`; minutes.
package-test: $(STAMP)
	$(BIN)/pytest -W error -m "long or not long" tests/packaging $(ARGS)

# The pages as a site, in build/site; any link that leads nowhere is an error.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

venv: $(STAMP)

$(STAMP): CONSTRAINTS := constraints.txt
$(STAMP): EXTRAS := dev,demo
$(STAMP): constraints.txt
$(STAMP4): CONSTRAINTS := constraints-spark4.txt
$(STAMP4): EXTRAS := test,spark4
$(STAMP4): constraints-spark4.txt

$(STAMP) $(STAMP4): pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.10 to 3.13 on PATH; install one, or name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || { echo "$(PYTHON) is no Python 3.10 to 3.13; name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	test -x $(@D)/bin/python || "$(PYTHON)" -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e ".[$(EXTRAS)]"
	touch $@

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find waltz_ray spark tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

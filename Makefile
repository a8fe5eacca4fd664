# `make` alone lists what there is to run. Every target does its own set-up.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NATIVE := $(wildcard src/ingero/*/_native/*.p[xy]*)
WORKERS ?= 2

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): requirements.lock pyproject.toml setup.py $(NATIVE)
	@echo "setting up $(VENV) (once; about a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "python3 cannot make virtual environments: install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.13"
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip sync --quiet --compile-bytecode --require-hashes requirements.lock
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q src  # commands start in half the time, also where nobody may write bytecode later
	@touch $@

.PHONY: setup
setup: $(READY) ## create .venv with everything, pinned by hash

.PHONY: demo
demo: $(READY) ## start a small simulated cluster, slow one node, show it being named
	@$(BIN)/ingero demo
	@echo; echo "the commands are in $(BIN): source $(BIN)/activate"

.PHONY: test
test: $(READY) ## run every test that this machine can run; what was skipped and why is printed at the end
	$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	$(BIN)/mypy
	bench/peers/perfetto.sh
	$(BIN)/pytest -n $(WORKERS) -rs

.PHONY: check
check: test ## the same as test

.PHONY: format
format: $(READY) ## format and apply safe lint fixes
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

.PHONY: docs
docs: $(READY) ## bring the generated parts of docs/ up to date
	$(BIN)/python -m ingero.cli.reference

.PHONY: lock
lock: ## pin all dependencies again (hashes, no addresses)
	uv pip compile --quiet --universal --all-extras --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links pyproject.toml -o requirements.lock

.PHONY: clean
clean: ## remove everything that set-up and tests made
	rm -rf $(VENV) .cache build dist src/*.egg-info src/ingero/*/_native/*.so src/ingero/*/_native/*.c

.PHONY: probes
probes: $(READY) ## rebuild the eBPF probes and the NCCL plugin for x86_64 and aarch64 (needs nothing but pip)
	$(BIN)/python -m ingero.agent.ebpf.probes.build
	$(BIN)/python -m ingero.agent.nccl.build

.PHONY: wheelhouse
wheelhouse: ## what the GPU tests carry to a machine that cannot install anything: wheels and a slim NCCL
	$(PYTHON) tests/hardware/prepare_wheels.py wheelhouse
	test -f wheelhouse/libnccl.so.2.xz || $(PYTHON) tests/hardware/prepare_nccl.py wheelhouse

.PHONY: peers
peers: ## install what tests and benchmarks run beside us: Collector, Perfetto (minutes; kept in ~/.cache/ingero/peers)
	nice bench/peers/build.sh

.PHONY: crash-echo
crash-echo: $(READY) ## kill -9 Echo and its store process 20 times under load; acknowledged must be found, once
	$(BIN)/python -m tests.e2e.echo_crash --kills 20

SEED ?= 7
.PHONY: scoreboard
scoreboard: $(READY) ## fifteen scenarios, three detectors, the gates; SEED=n, minutes, goes on where it stopped
	nice $(BIN)/python -m bench.detection --seed $(SEED)

SEEDS ?= 2000-2023
.PHONY: scoreboard-seeds
scoreboard-seeds: $(READY) ## the gates on many seeds nobody tuned on; SEEDS=a-b, two minutes a seed, goes on where it stopped
	nice $(BIN)/python -m bench.detection --seeds $(SEEDS) --size 3 --size 8 --size 64

.PHONY: bench-fleet
bench-fleet: $(READY) ## what a push costs Fleet, beside a constant answer and plain ASGI; PASS or FAIL per requirement
	$(BIN)/python -m bench.fleet_push

.PHONY: bench-peers
bench-peers: $(READY) peers ## the same pushes to Fleet and to an OpenTelemetry Collector (needs Go)
	$(BIN)/python -m bench.fleet_vs_collector

.PHONY: bench-echo
bench-echo: $(READY) ## Echo's ingest beside a row-by-row reference, one table, PASS or FAIL per requirement
	$(BIN)/python -m bench.echo_ingest

.PHONY: bench-verdict
bench-verdict: $(READY) ## one verdict tick for 10,000 ranks, collectives matched against a plain loop
	$(BIN)/python -m bench.verdict

.PHONY: bench-plugin
bench-plugin: $(READY) ## what the NCCL plugin adds to a collective, in nanoseconds
	$(BIN)/python bench/nccl_plugin.py

.PHONY: bench-ebpf
bench-ebpf: $(READY) ## what tracing costs here: ns per call, agent CPU per event, loss, start-up, memory (root)
	$(BIN)/python bench/ebpf_overhead.py

.PHONY: bench-merge
bench-merge: $(READY) ## merge against a row loop
	$(BIN)/python -m bench.merge

.PHONY: bench-export
bench-export: $(READY) ## Perfetto export against stdlib json
	$(BIN)/python -m bench.export

.PHONY: bench-fanout
bench-fanout: $(READY) ## fan-out to 50, 500 and 2,000 TLS nodes
	$(BIN)/python -m bench.fanout

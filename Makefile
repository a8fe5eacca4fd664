# `make` alone lists the targets. Every target does its own set-up.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NATIVE := $(wildcard src/ingero/*/_native/*.p[xy]*)
WORKERS ?= 2
# Tests take 20 minutes on two cores: after an hour they end like with Ctrl-C, which lists what failed until then.
HOUR := $(if $(shell command -v timeout),timeout --foreground --signal=INT --kill-after=60 3600)
# pytest-timeout ends a test by a signal, which compiled code does not notice: two minutes later its worker ends, with a stack.
HANGS := -o faulthandler_timeout=720 -o faulthandler_exit_on_timeout=true

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): requirements.lock pyproject.toml setup.py $(NATIVE)
	@echo "setting up $(VENV) (once; about a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "python3 cannot make virtual environments: install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/uv || { awk '/^uv==/ {uv = 1} uv; uv && !/\\$$/ {exit}' requirements.lock > $(VENV)/uv.txt; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $(VENV)/uv.txt; }
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip sync --quiet --compile-bytecode --require-hashes requirements.lock
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q src  # commands start in half the time, also where nobody may write bytecode later
	@touch $@

.PHONY: setup
setup: $(READY) ## create .venv with all dependencies, pinned by hash

.PHONY: demo
demo: $(READY) ## start a simulated job of 64 ranks, slow one of them, show it being named
	@$(BIN)/ingero demo
	@echo; echo "the commands are in $(BIN): source $(BIN)/activate"

.PHONY: test
test: $(READY) ## run every test that this machine can run, and list what was skipped and why
	$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	$(BIN)/mypy
	bench/peers/perfetto.sh && bench/peers/debian.sh && bench/peers/postgres.sh
	$(HOUR) $(BIN)/pytest -n $(WORKERS) -rs $(HANGS)

.PHONY: check
check: test ## the same as `make test`

.PHONY: format
format: $(READY) ## format the code and apply safe lint fixes
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

.PHONY: docs
docs: $(READY) ## update the generated parts of docs/
	$(BIN)/python -m ingero.cli.reference
	$(BIN)/python -m tests.support.features

.PHONY: surface
surface: $(READY) ## record the public surface: names, fields, commands, metrics, settings, tables
	$(BIN)/python -m tests.surface

.PHONY: lock
lock: ## pin all dependencies again, with hashes and without index addresses
	uv pip compile --quiet --universal --extra dev --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links pyproject.toml -o requirements.lock
	uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links tests/fuzz/requirements.in -o tests/fuzz/requirements.lock
	uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links release/pages.in -o release/pages.lock

.PHONY: clean
clean: ## remove everything that set-up and tests created
	rm -rf $(VENV) .cache build dist src/*.egg-info src/ingero/*/_native/*.so src/ingero/*/_native/*.c

.PHONY: probes
probes: $(READY) ## rebuild the eBPF probes, the NCCL plugin and the stand-in of `ingero load` for x86_64 and aarch64 (needs only pip)
	$(BIN)/python -m ingero.agent.ebpf.probes.build
	$(BIN)/python -m ingero.agent.nccl.build
	$(BIN)/python -m ingero.agent.load.build

OUT ?= dist
.PHONY: release
release: $(READY) ## build wheels, source archive, bill of materials, charts, deb, rpm and image into OUT=dist, with checksums (RELEASE_KEY=file signs them)
	nice $(BIN)/python -m release --out $(OUT)

.PHONY: release-check
release-check: $(READY) ## verify the checksums of OUT=dist, install its wheels into an empty home without a compiler and run the demo
	nice $(BIN)/python -m release.check $(OUT)

.PHONY: image
image: $(READY) peers-images ## build the image of all services without a daemon, as localhost/ingero (OCI=file also writes an archive; BASE=image; EXTRAS=lake adds an extra)
	nice $(BIN)/python -m release.image $(if $(BASE),--base $(BASE)) $(if $(EXTRAS),--with $(EXTRAS)) $(if $(OCI),--out $(OCI))

.PHONY: site
site: $(READY) ## build the documentation as a website into build/site, which needs nothing from elsewhere
	@test -x .cache/pages/bin/zensical || { $(BIN)/uv venv --quiet .cache/pages && \
		VIRTUAL_ENV=$(CURDIR)/.cache/pages $(BIN)/uv pip sync --quiet --require-hashes release/pages.lock; }
	nice $(BIN)/python -m release.pages --zensical $(CURDIR)/.cache/pages/bin/zensical

.PHONY: peers-charts
peers-charts: ## install Helm, kubectl, kubeconform, helm-unittest and nfpm for charts and packages (needs Go; takes minutes; kept in ~/.cache/ingero/peers)
	nice bench/peers/charts.sh

.PHONY: peers-images
peers-images: ## install buildah, podman, skopeo, runc and mmdebstrap from Debian, to build and run images
	nice bench/peers/images.sh

.PHONY: peers-k8s
peers-k8s: ## build a whole Kubernetes node for tests (needs Go; about 12 minutes of CPU; kept in ~/.cache/ingero/peers)
	nice bench/peers/k8s.sh

.PHONY: peers-kernels
peers-kernels: ## download Debian's stock kernels for amd64 and arm64, and install the emulator that boots them
	nice bench/peers/kernels.sh

.PHONY: peers-slurm
peers-slurm: ## install Slurm and munge from Debian, for a cluster on loopback
	nice bench/peers/slurm.sh

.PHONY: peers-valkey
peers-valkey: ## install Valkey (or Redis 7), HAProxy and nginx from Debian, for replicas of Fleet (needs root)
	nice bench/peers/valkey.sh

.PHONY: test-charts
test-charts: $(READY) peers-charts ## judge the charts with helm lint, helm-unittest and kubeconform (`make test` does so, too, where these are installed)
	$(BIN)/pytest -p no:xdist tests/deploy/test_charts.py tests/test_quickstarts.py

.PHONY: e2e-image
e2e-image: $(READY) peers-images ## build the image twice and run Fleet, Echo and agent from it, read-only and without rights (needs root; DIST=folder of a release)
	INGERO_TEST_IMAGE=1 INGERO_TEST_DIST=$(DIST) $(BIN)/pytest -rP tests/release/test_image.py

.PHONY: e2e-packages
e2e-packages: $(READY) peers-charts ## build the deb, install it for real, run it and remove it again (needs root and Debian 12; DIST=folder of a release)
	INGERO_TEST_PACKAGES=1 INGERO_TEST_DIST=$(DIST) $(BIN)/pytest tests/release/test_packages.py

.PHONY: e2e-k8s
e2e-k8s: $(READY) peers-k8s ## install the charts on a real kubelet and containerd: all probes, a push, a named rank, upgrade, 200 nodes, uninstall (needs root; IMAGE=name of an image that is there)
	INGERO_TEST_K8S=1 INGERO_TEST_IMAGE_TAG=$(IMAGE) $(BIN)/pytest -p no:xdist -v -s tests/e2e/test_kubernetes.py

.PHONY: e2e-kernels
e2e-kernels: $(READY) peers-kernels peers-images ## boot Debian's stock kernels in an emulator: every probe loads, and every call is counted (takes minutes)
	bench/peers/aarch64.sh
	INGERO_TEST_KERNELS=1 $(BIN)/pytest -p no:xdist -v -s tests/release/test_kernels.py

.PHONY: e2e-systemd
e2e-systemd: $(READY) peers-images peers-charts ## install the debs under a real systemd in a container and follow docs/quickstart-binary.md there (needs root; DIST=folder of a release)
	INGERO_TEST_SYSTEMD=1 INGERO_TEST_DIST=$(DIST) $(BIN)/pytest tests/release/test_systemd.py

RATE ?= 2000
.PHONY: e2e-replicas
e2e-replicas: $(READY) peers-valkey ## run three replicas of Fleet on a real Valkey or Redis: kills, fail-over, an engine that is away (three minutes; RATE=pushes per second)
	INGERO_TEST_REPLICAS=1 RATE=$(RATE) $(BIN)/pytest -rP -n 2 --dist loadgroup tests/e2e/test_replicas.py

.PHONY: e2e-slurm
e2e-slurm: $(READY) peers-slurm ## run a real Slurm cluster of three nodes on loopback: plugin in every task, gate, opt-in drain (needs root)
	INGERO_TEST_SLURM=1 $(BIN)/pytest tests/e2e/test_slurm.py

.PHONY: test-compat
test-compat: $(READY) ## try agents, Fleet, Echo and commands against the version of the commit in tests/compat/BASE (BASE=another commit; takes minutes)
	INGERO_TEST_COMPAT=1 BASE=$(BASE) nice $(BIN)/pytest tests/compat

.PHONY: test-aarch64
test-aarch64: $(READY) ## run tests/contract and tests/core from the wheel for aarch64 under qemu, with pages of 4 and 64 KiB (TESTS=, PAGES=, CASES=first for one case of each test; takes an hour)
	bench/peers/aarch64.sh
	nice $(BIN)/python -m release.aarch64 $(if $(PAGES),--pages $(PAGES)) $(if $(filter first,$(CASES)),--first-cases) $(TESTS)

.PHONY: wheelhouse
wheelhouse: ## collect wheels and a slim NCCL for GPU tests on a machine without network
	$(PYTHON) tests/hardware/prepare_wheels.py wheelhouse
	test -f wheelhouse/libnccl.so.2.xz || $(PYTHON) tests/hardware/prepare_nccl.py wheelhouse

.PHONY: peers
peers: ## install the programs that tests and benchmarks compare with: Collector, Perfetto (takes minutes; kept in ~/.cache/ingero/peers)
	nice bench/peers/build.sh

.PHONY: peers-clickhouse
peers-clickhouse: ## build a Collector with the exporter for ClickHouse (needs Go; takes minutes; kept in ~/.cache/ingero/peers)
	bench/peers/clickhouse.sh

.PHONY: peers-grafana
peers-grafana: ## install Grafana's types and the TypeScript compiler, which check the dashboards (needs npm; kept in ~/.cache/ingero/peers)
	nice bench/peers/grafana.sh

.PHONY: peers-inference
peers-inference: $(READY) ## install a real vLLM on the CPU for tests, in an environment of its own (5.9 GB; kept in ~/.cache/ingero/peers)
	nice bench/peers/inference.sh

.PHONY: test-inference
test-inference: peers-inference ## stop and restart a real vLLM on the CPU: stalled engines are named, idle ones never (takes minutes, 9 GB of memory)
	INGERO_TEST_VLLM=1 $(BIN)/pytest -s tests/e2e/test_vllm.py

.PHONY: e2e-three-nodes
e2e-three-nodes: $(READY) ## bring three nodes under `ingero load matmul` to quorum, with the intervals of production (needs root; two minutes)
	INGERO_TEST_PUSH_INTERVAL_S=5 $(BIN)/pytest -s -p no:xdist tests/e2e/test_three_nodes.py

.PHONY: peers-lake
peers-lake: $(READY) ## install PostgreSQL from Debian and SeaweedFS, the engines of a lake
	bench/peers/lake.sh

.PHONY: e2e-lake
e2e-lake: $(READY) peers-lake ## run the tests of Echo's store, engine, questions and SQL on a real lake, and kill its engines under load
	INGERO_TEST_STORE=lake nice $(BIN)/pytest -n $(WORKERS) -rs tests/storage/events tests/echo tests/e2e/lake

.PHONY: crash-echo
crash-echo: $(READY) ## kill Echo and its store process 20 times under load; every acknowledged event must be stored exactly once
	$(BIN)/python -m tests.e2e.echo_crash --kills 20

SECONDS ?= 60
FUZZ = $(filter-out __main__ test_targets,$(basename $(notdir $(wildcard tests/fuzz/*.py))))
.PHONY: fuzz
fuzz: $(READY) ## run every fuzz target, guided by coverage; SECONDS=n each
	@$(BIN)/python -c "import atheris" 2>/dev/null || VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-deps --require-hashes -r tests/fuzz/requirements.lock
	@failed=; for target in $(FUZZ); do echo "$$target"; $(BIN)/python -m tests.fuzz $$target $(SECONDS) || failed="$$failed $$target"; done; \
	test -z "$$failed" || { echo "found something:$$failed (see .cache/fuzz)" >&2; exit 1; }

SEED ?= 7
MINUTES ?= 60
.PHONY: mutants
mutants: $(READY) ## change the code a little, many times: which changes does no test notice? MINUTES=60, SEED=n
	nice $(BIN)/python -m tests.mutation --minutes $(MINUTES) --seed $(SEED) --workers $(WORKERS)

.PHONY: soak
soak: MINUTES = 30
soak: $(READY) ## run all services under load with a fault every minute; fails on leaks, lost events and false verdicts (MINUTES=30, LEAK=1)
	nice $(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(LEAK),--leak)

.PHONY: scoreboard
scoreboard: $(READY) ## run fifteen scenarios with three detectors and check the gates (SEED=n; takes minutes, resumes if interrupted)
	nice $(BIN)/python -m bench.detection --seed $(SEED)

SEEDS ?= 2000-2023
.PHONY: scoreboard-seeds
scoreboard-seeds: $(READY) ## check the gates on many untuned seeds (SEEDS=a-b; two minutes per seed, resumes if interrupted)
	nice $(BIN)/python -m bench.detection --seeds $(SEEDS) --size 3 --size 8 --size 64

.PHONY: pictures
pictures: $(READY) ## take the screenshots of Fleet's page in docs/pictures (needs Chromium)
	nice $(BIN)/python -m bench.pictures

.PHONY: recordings
recordings: $(READY) ## ask `ingero blame` about recordings of real jobs and sixty windows of them, and compare with the jobs' own steps
	nice $(BIN)/python -m tests.support.recording_score

.PHONY: recordings-changed
recordings-changed: $(READY) ## ask `ingero blame` about recordings with ranks, rows, clocks and flags changed, and check that no answer becomes wrong
	nice $(BIN)/python -m tests.support.changed_recordings

.PHONY: bench-fleet
bench-fleet: $(READY) ## measure what a push costs Fleet, compared with a constant answer and plain ASGI; PASS or FAIL per requirement
	$(BIN)/python -m bench.fleet_push

.PHONY: bench-page
bench-page: $(READY) ## measure what 20 open pages of 10,000 nodes cost Fleet, and a paint of the map; PASS or FAIL per requirement
	nice $(BIN)/python -m bench.page

.PHONY: bench-agent
bench-agent: $(READY) ## measure memory and CPU time of an idle agent with all parts (probes need root); fails above 150 MB or 1 %
	$(BIN)/python -m bench.agent

.PHONY: bench-install
bench-install: $(READY) ## measure the disk space of an installation from the wheel, without and with Echo; PASS or FAIL per requirement
	nice $(BIN)/python -m bench.install_size

.PHONY: bench-fleet-memory
bench-fleet-memory: $(READY) ## measure the memory of Fleet with a hundred nodes, with and without gRPC
	$(BIN)/python -m bench.fleet_memory

.PHONY: bench-echo-integration
bench-echo-integration: $(READY) ## measure how long the integration test of Echo takes; on a quiet machine at most 21 s
	$(BIN)/python -m bench.echo_integration

.PHONY: bench-peers
bench-peers: $(READY) peers ## send the same pushes to Fleet, an OpenTelemetry Collector and VictoriaMetrics (needs Go); INGERO_REFERENCE=program also compares commands
	nice bench/peers/victoria.sh
	$(BIN)/python -m bench.fleet_vs_collector

.PHONY: bench-100k
bench-100k: $(READY) ## send the plain pushes of 100,000 nodes to one Fleet, and fewer to three replicas on a log; PASS or FAIL (four minutes)
	$(BIN)/python -m bench.hundred_thousand

.PHONY: bench-scrape
bench-scrape: $(READY) ## measure a scrape of 10,000 nodes; PASS or FAIL per requirement
	$(BIN)/python -m bench.scrape

.PHONY: bench-echo
bench-echo: $(READY) ## measure Echo's ingest, compared with row-by-row inserts; PASS or FAIL per requirement
	$(BIN)/python -m bench.echo_ingest

.PHONY: bench-lake
bench-lake: $(READY) peers-lake ## measure loads and a tiny query on a real lake, compared with the embedded store; PASS or FAIL per requirement
	$(BIN)/python -m bench.echo_lake

.PHONY: bench-attacks
bench-attacks: $(READY) ## send known attacks to Fleet and Echo, and measure memory, how long the event loop is held, and who waits
	$(BIN)/python -m bench.attacks

.PHONY: bench-verdict
bench-verdict: $(READY) ## measure a verdict tick for 10,000 ranks, and the matching of collectives compared with a plain loop
	$(BIN)/python -m bench.verdict

.PHONY: bench-plugin
bench-plugin: $(READY) ## measure what the NCCL plugin adds to a collective, in nanoseconds
	$(BIN)/python bench/nccl_plugin.py

.PHONY: bench-ebpf
bench-ebpf: $(READY) ## measure what tracing costs here: ns per call, agent CPU per event, loss, start-up, memory (needs root)
	$(BIN)/python bench/ebpf_overhead.py

.PHONY: bench-merge
bench-merge: $(READY) ## measure `ingero merge`, compared with a loop over rows
	$(BIN)/python -m bench.merge

.PHONY: bench-export
bench-export: $(READY) ## measure the Perfetto export, compared with the json module of Python
	$(BIN)/python -m bench.export

.PHONY: bench-fanout
bench-fanout: $(READY) ## measure a fan-out to 50, 500 and 2,000 TLS nodes
	$(BIN)/python -m bench.fanout

# Everything a person or CI types. Each target sets up what it needs (scripts/setup); nothing else is installed by hand.
# PYTHON=/path/to/python3.11 chooses the interpreter for .venv.

# Some machines switch Python's bytecode cache off. Then each process of each test compiles torch, aiohttp and ourselves anew, which is most of
# what it does; nobody's job runs so.
unexport PYTHONDONTWRITEBYTECODE

PY := .venv/bin/python
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-cluster test-all coverage explore steady testbed-build testbed-up testbed-down bench bench-hostile bench-cluster bench-logs bench-loss bench-foreign bench-verdict zoo bench-health soak-health fuzz fuzz-readers house prose picture api notebook lint lock sbom clean

help: ## Show what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-16s %s\n", $$1, $$2}'

setup: ## Make .venv with Rankfall, torch and the test tools (stamped: at once when nothing changed)
	@scripts/setup

demo: setup ## Train the example on 2 nodes x 2 ranks, let a rank fall, watch Rankfall explain, retry and resume
	@$(PY) scripts/demo.py

test: setup ## Lint, unit tests, tests with processes, a covering part of torchrun and of the faults; no root; STAGE=unit runs one
	@$(PY) scripts/check.py test $(if $(STAGE),--stage $(STAGE))

test-cluster: setup ## Build and start a real Kubernetes on this machine and run a covering part of its tests (root, Linux); STAGE=bed runs one
	@$(PY) scripts/check.py test-cluster $(if $(STAGE),--stage $(STAGE))

test-all: setup ## Every test there is, coverage and new random examples; writes docs/results/faults.md (root, hours); STAGE=bed-all runs one (in three parts, as bed-all-2); VERSIONS=all or 1.37: other versions
	@$(PY) scripts/check.py $(if $(VERSIONS),versions $(if $(filter all,$(VERSIONS)),,--stage versions-$(VERSIONS)),test-all $(if $(STAGE),--stage $(STAGE)))

coverage: setup ## Run unit tests and tests with processes under a tracer; fails below the floor of pyproject.toml
	@$(PY) scripts/check.py coverage

explore: setup ## Run all property tests with new random examples, ten times as many; prints the seed
	@$(PY) scripts/check.py explore

steady: setup ## Run each stage of tests three times in drawn orders beside two busy processes; prints what failed in any run; STAGE=unit runs one
	@$(PY) scripts/check.py steady $(if $(STAGE),--stage $(STAGE))

testbed-build: setup ## Build what the test bed and its tests need, once a machine and version (root)
	@$(PY) -m testbed build --all

testbed-up: setup ## Start a real Kubernetes on this machine (root; the first time it builds it and says how long that takes)
	@$(PY) -m testbed up

testbed-down: setup ## End and remove everything of it
	@$(PY) -m testbed down

bench: setup ## Measure speed and memory side by side with plain tools; prints a table
	@$(PY) bench

bench-hostile: setup ## Measure what hostile output of a job costs its run beside plain text; MIB=100 PAIRS=5; writes docs/results/bench-hostile.md
	@$(PY) -m bench.hostile $(if $(MIB),--mib $(MIB)) $(if $(PAIRS),--pairs $(PAIRS))

bench-cluster: setup ## Measure what runs cost a cluster: requests, memory, CPU; on a bed that is up, else on one of its own (root)
	@$(PY) -m bench.cluster

bench-logs: setup ## Measure following logs beside kubectl and the official Python client: losses, speed, memory; as bench-cluster (root)
	@$(PY) -m bench.logs

bench-loss: setup ## Of bench-logs only the lines lost when connections are cut
	@$(PY) -m bench.logs loss

bench-foreign: setup ## Let a foreign job fail; writes what torchrun, kubectl and Rankfall show of it into docs/results/bench-foreign.md (root)
	@$(PY) -m bench.foreign

bench-verdict: setup ## Measure how soon and how rightly a fall of 1,024 ranks and of real logs is explained; CORPUS=FOLDER of other logs
	@$(PY) -m bench.verdict $(if $(CORPUS),--corpus $(CORPUS))

zoo: setup ## Run real launchers (torchrun, DeepSpeed, Ray, MPI, ...) with real faults and judge what their text explains; LAUNCHERS="ray spawn"; writes docs/results/zoo.md
	@$(PY) -m bench.zoo $(LAUNCHERS)

bench-health: setup ## Measure how soon a kernel line is a taint, by agent and by Loki, and what agent and controller cost; ONLY="agent rest kmsg loki controller"; as bench-cluster (root)
	@$(PY) -m bench.health $(if $(ONLY),--only $(ONLY))

soak-health: setup ## Faults, kills and restarts for the controller over MINUTES (30) on 1,000 fake nodes; as bench-cluster (root)
	@$(PY) -m bench.health.soak $(if $(MINUTES),--minutes $(MINUTES))

fuzz: setup ## Read ten million mutated kernel lines and compare each with a second reader; writes docs/results/fuzz-kernel-lines.md
	@$(PY) scripts/fuzz.py

fuzz-readers: setup ## Measure what each reader of foreign bytes costs over hostile inputs; fails when one crashes, stalls or takes too much memory
	@$(PY) scripts/fuzz_readers.py

picture: setup ## Make the pictures of the docs from a real failed run: docs/images/verdict.svg, and report.png with Chromium
	@$(PY) scripts/picture.py

api: setup ## Write docs/api.md from the signatures and docstrings of the Python API
	@$(PY) scripts/api.py

notebook: setup ## Execute examples/explain.ipynb and store its outputs
	@$(PY) scripts/notebook.py

house: setup ## Print sizes, imports, wide constructors and private words of the sources, room by room
	@$(PY) scripts/house.py

prose: setup ## Print findings in the language of docstrings, comments and messages, and a table of it; a part of lint
	@$(PY) scripts/prose.py

lint: setup ## Format, lint, types, layers, oldest Python of what travels into the job
	@$(PY) scripts/check.py lint

lock: setup ## Write the locked versions and their hashes anew (constraints.txt, deploy/*requirements.txt): the newest that fit
	@scripts/lock

sbom: setup ## Write build/sbom.cdx.json (CycloneDX) and build/licences.md of what the image holds
	@$(PY) scripts/sbom.py

clean: ## Remove what the targets above made (not the run directories)
	rm -rf .venv build dist .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

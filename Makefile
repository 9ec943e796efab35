# A fresh clone needs Python 3.11 or newer, a C++17 compiler and the Python package index; every target brings what it needs up to date first.
#
#   make demo           the main job on a long context: table, and a picture in out/; builds only what this machine's GPU runs, without a GPU nothing
#   make example        a small decoder with sparse attention on top of the op, against dense attention; GPU if there is one, else CPU
#   make check          under a minute: the linter, the layers, definition and quick rows of the kernels that have changed;   make check OP=block_scores: of one op
#   make test           every test that needs no GPU but the slow ones that rarely fail, in as many processes as WORKERS says
#   make test-smoke     definition and API only: no kernels, no C++
#   make test-all       make test, the slow ones, then every kernel over every case and fuzzed ones in the PTX simulator, sound and broken installations under the oldest
#                       and the newest JAX, two rebuilds of every cubin compared, and the Bazel build where Bazel is installed
#   make test-anchors   kernels that others wrote, from a wheel that pip downloads (100 MB), in the PTX simulator
#   make evidence       renews the lines of tests/evidence/ledger.json that are of other kernels, rows or another simulator (hours after a change of the simulator)
#   make release-check  what must hold before a release: no line of the ledger is stale, tables of times are those of the records
#   make test-gpu       the tests that need a GPU; none found is an error
#   make two-gpus       the op on two GPUs of this host: bits, communication, first calls, speed-up
#   make parity-record  the whole case table on this machine's GPU, with a record in benchmarks/results
#   make memcheck       the small cases under compute-sanitizer (CUDA toolkit), on all GPUs found;   make racecheck | synccheck: the fewest that run every kernel
#   make card-report    parity, benchmark and sanitizer of this machine's GPU in one archive (docs/blackwell.md)
#   make fuzz           12,000 random calls on a GPU, and 1,024 under compute-sanitizer
#   make benchmark-all  every case into benchmarks/results/<card>
#   make lint           ruff: faults and form of all Python files (.ci/run)
#   make warnings       the simulator's core for three generations of x86-64 processors, every warning of the compiler an error (.ci/run)
#   make venv | cubins | library | wheel | bazel-test | clean
#
# Where nvidia-smi answers, JAX's CUDA plugin of the driver's CUDA version is installed too; EXTRAS=dev keeps it out.
# Another interpreter: make PYTHON=python3.12 ...

ifndef EXTRAS
CUDA_MAJOR := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: \([0-9]*\).*/\1/p')
EXTRAS := dev$(if $(CUDA_MAJOR),$(shell test $(CUDA_MAJOR) -ge 13 && echo ,cuda13 || echo ,cuda12))
endif
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
SITE = $(abspath $(BIN))
comma := ,
READY := $(VENV)/.ready-$(subst $(comma),-,$(EXTRAS))
export PATH := $(SITE):$(PATH)
export OMP_NUM_THREADS ?= 2
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 8 ] && echo 8 || echo $$n)
OP ?=

.PHONY: venv cubins library wheel demo example check test test-smoke test-all evidence release-check test-anchors test-gpu two-gpus parity-record memcheck racecheck synccheck card-report fuzz benchmark-all bazel-test lint warnings clean

venv: $(READY)

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer on PATH; install one, or give it: make PYTHON=/path/to/python3"; exit 1; }
	@command -v c++ >/dev/null || command -v g++ >/dev/null || { echo "make: no C++ compiler on PATH; e.g. apt-get install g++"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "scikit-build-core>=0.11"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --config-settings=wheel.cmake=false -e ".[$(EXTRAS)]"
	touch $@

cubins: venv
	$(BIN)/python -m jax_fp4_indexer.aot build

library: venv
	@test -f build/dev/build.ninja || $(BIN)/cmake -S . -B build/dev -G Ninja -DCMAKE_BUILD_TYPE=Release -DJFI_BUILD_CUBINS=OFF -DPython_EXECUTABLE=$(SITE)/python > /dev/null
	@$(BIN)/cmake --build build/dev
	@$(BIN)/cmake --install build/dev --prefix . > /dev/null

wheel:
	$(PYTHON) -m pip wheel --no-deps --wheel-dir dist .

# Builds what this machine runs: without a GPU nothing, with one the library and the kernels of its arch.
demo: venv
	@capability=$$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1); \
	if test -z "$$capability"; then exit 0; fi; \
	archs=$$($(BIN)/python -c "import sys; from jax_fp4_indexer.configs.arch import archs_for; print(','.join(archs_for(sys.argv[1])))" "$$capability") || exit 1; \
	if test -z "$$archs"; then exit 0; fi; \
	$(BIN)/python -m jax_fp4_indexer.aot build --arch "$$archs" && $(MAKE) library
	$(BIN)/jax-fp4-indexer demo

example: cubins library
	$(BIN)/python -m examples.sparse_decoder

# Of the definition, the rows that are not there for the machinery of kernels; the rest is in make test.
QUICK := not random and not parts_alone and not both_forms and not (test_the_definition and (sim_ or forms_))

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	JFI_OP=$(OP) $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup -k "$(QUICK)" tests/test_layers.py tests/specs tests/harness tests/simulated/test_kernels.py

test: cubins library
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

test-smoke: venv
	$(BIN)/python -m pytest tests/formats tests/reference tests/ops

test-all: test
	$(MAKE) evidence
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m nightly
	JFI_PTXSIM=all $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not gpu" tests/ptxsim tests/simulated tests/fuzz/test_simulated.py
	$(BIN)/python tests/packaging/installations.py --jax 0.9.1,newest
	$(BIN)/python -m jax_fp4_indexer.aot verify --rebuild
	$(BIN)/python tests/parity/two_gpus.py build/two_gpus.json --small --processes 2 --limit 1200
	@if command -v bazel >/dev/null; then $(MAKE) bazel-test; else echo "bazel: not installed, its build was not tried"; fi

test-anchors: venv
	$(BIN)/python -m pytest tests/ptxsim/anchors/checks.py

evidence: cubins library
	PYTHONPATH=.:tests $(BIN)/python -m simulated.sweep

release-check: cubins library
	PYTHONPATH=.:tests $(BIN)/python -m simulated.sweep status
	PYTHONPATH=.:tests $(BIN)/python -m pytest -q -W error::simulated.ledger.StaleEvidence tests/test_claims.py tests/simulated/test_mutations.py -k "stale or records_of_the_tree"
	$(BIN)/python benchmarks/report.py --check

two-gpus: cubins library
	$(BIN)/python tests/parity/two_gpus.py benchmarks/results/h200-x2/block_scores.json

test-gpu: cubins library
	JFI_REQUIRE_GPU=1 $(BIN)/python -m pytest -m gpu

parity-record: cubins library
	$(BIN)/python tests/parity/run.py --extra inside_jit,past_2_31 --record

memcheck: cubins library
	$(BIN)/python tests/parity/sanitize.py --control
	$(BIN)/python tests/parity/sanitize.py --rows small --record

fuzz: cubins library
	PYTHONPATH=.:tests $(BIN)/python -m fuzz --cases 12000 --processes 4 --record
	PYTHONPATH=.:tests $(BIN)/python -m fuzz.sanitize --cases 1024 --record
	PYTHONPATH=.:tests $(BIN)/python -m fuzz.batched_gemv --cases 3000 --record
	PYTHONPATH=.:tests $(BIN)/python -m fuzz.batched_gemv_sanitize --record

racecheck: cubins library
	$(BIN)/python tests/parity/racecheck_build.py build/every_lane
	$(BIN)/python tests/parity/sanitize.py --control --tool racecheck --cubins build/every_lane
	$(BIN)/python tests/parity/sanitize.py --rows variants --tool racecheck --alter arrivals --cubins build/every_lane --record

synccheck: cubins library
	$(BIN)/python tests/parity/sanitize.py --control --tool synccheck
	$(BIN)/python tests/parity/sanitize.py --rows variants --tool synccheck --record

card-report: cubins library
	$(BIN)/python tests/parity/card_report.py

benchmark-all: cubins library
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/dispatch.py
	$(BIN)/python benchmarks/report.py

# Fetches nothing where Bazel reads WORKSPACE (4 to 7): tools/bazel/stubs stands for the rule repositories.
bazel-test: venv
	bazel test --repo_env=JFI_PYTHON=$(SITE)/python //...

LEVELS := native $(if $(filter x86_64,$(shell uname -m)),x86-64-v2 x86-64-v3)
lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

warnings: venv
	@set -e; for level in $(LEVELS); do echo "the simulator's core for $$level"; \
	  JFI_PTXSIM_WERROR=1 JFI_PTXSIM_MARCH=$$level PYTHONPATH=.:tests $(BIN)/python -c "from ptxsim import native; native.build('core', 'core'); native.build('libcuda', 'driver')"; done

clean:
	rm -rf build dist jax_fp4_indexer/_lib jax_fp4_indexer/cubins/sm_* jax_fp4_indexer/cubins/manifest.json

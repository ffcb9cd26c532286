# Every target prepares what it needs: a fresh machine with make and Python >= 3.11 is enough.
PYTHON ?= python3
BIN := .venv/bin
BENCH_BIN := .venv-bench/bin
RESULTS_BIN := .venv-results/bin
LOWEST_BIN := .venv-lowest/bin
# Modules are compiled when they are first imported: most of those that are installed never are.
PIP_INSTALL := pip install --quiet --disable-pip-version-check --no-compile --editable

DEMO_ENV ?= ALE/MsPacman-v5
DEMO_SECONDS ?= 60
DEMO_DIR ?= demo
# The files with tests on a Ray cluster. A test of another file that needs one fails.
ON_RAY := $(wildcard tests/cluster/test_*.py tests/batchers/*/test_*_on_ray.py tests/batchers/workers/test_*.py) tests/test_every_backend.py
# Each folder's tests are one process, so that none imports what others need. The slowest begin first.
FOLDERS := envs envs/any_env planners vector docs snapshots envs/mujoco envs/atari
FOLDERS += $(filter-out $(FOLDERS),$(patsubst tests/%/,%,$(sort $(dir $(wildcard tests/*/test_*.py tests/*/*/test_*.py)))))
RUN_TESTS := python -m pytest --quiet
PYTHONS ?= python3.11 python3.12 python3.13

.PHONY: help demo learn results test all-tests on-ray $(FOLDERS:%=folder/%) top-level test-all lint faults soak fault-table docs table bench test-lowest release-check clean
.DELETE_ON_ERROR:
# Thousands of processes would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
# Two targets at once would install into one environment at once.
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif

help:
	@echo "make demo   search $(DEMO_ENV) for about $(DEMO_SECONDS) seconds and show the result"
	@echo "make learn  let the learners in examples/ learn, five seeds each, and draw their curves"
	@echo "make results  play games and robots with every planner, beside published scores"
	@echo "make test   lint, type-check, build the docs, run the tests and every documented example"
	@echo "make lint   ruff and mypy --strict alone"
	@echo "make faults run tests that kill and hang workers and look for leaks (takes minutes)"
	@echo "make soak   restore Box2D environments ten million times (takes an hour)"
	@echo "make fault-table  compare this package with other libraries under the same faults"
	@echo "make docs   build the documentation into docs/_build/html"
	@echo "make table  check everything installed, write their tables"
	@echo "make bench  compare this package with other libraries and redraw the published figures"
	@echo "make test-all  make test with each of $(PYTHONS) that is installed"
	@echo "make test-lowest  run every test with the oldest versions that setup.cfg allows (installs 6 GB)"
	@echo "make release-check  build wheel and sdist, and test the wheel with each extra alone"
	@echo "make clean  remove what the other targets made"

demo: .venv/.demo
	$(BIN)/python examples/fmc.py $(DEMO_ENV) --seconds $(DEMO_SECONDS) --out $(DEMO_DIR)
	$(BIN)/python examples/replay.py $(DEMO_DIR)/actions.json

learn: .venv/.test
	$(BIN)/python examples/a2c.py --seeds 0 1 2 3 4 --out learn/a2c.png
	$(BIN)/python examples/reinforce.py --seeds 0 1 2 3 4 --out learn/reinforce.png
	$(BIN)/python examples/dqn.py --seeds 0 1 2 3 4 --out learn/dqn.png
	$(BIN)/python -m pytest --quiet -m full tests/examples tests/planners/test_robots_with_own_costs.py

# Tasks that have a record are left out.
results: .venv-results/.results
	$(RESULTS_BIN)/python benchmarks/results.py

# Four processes on two cores: many tests wait for what they have killed, stopped or started.
test: .venv/.test
	@$(MAKE) --jobs 4 --keep-going --output-sync=target SIDE_BY_SIDE=1 TESTS_BIN=$(BIN) on-ray lint docs all-tests

all-tests: $(FOLDERS:%=folder/%) top-level

on-ray:
	@echo "tests on a Ray cluster"
	@$(TESTS_BIN)/$(RUN_TESTS) -m "ray and not full" $(ON_RAY)

$(FOLDERS:%=folder/%): folder/%:
	@echo "tests/$*"
	@$(TESTS_BIN)/$(RUN_TESTS) -m "not ray and not full" $(wildcard tests/$*/test_*.py)

# Without this, mypy would read all packages twice.
ifneq (,$(filter lint,$(MAKECMDGOALS)))
folder/types: lint
endif

top-level:
	@echo "doctests of plangym_like, and tests/test_*.py"
	@$(TESTS_BIN)/$(RUN_TESTS) -m "not ray and not full" plangym_like tests/test_*.py

lint: .venv/.test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy --strict plangym_like

faults: .venv/.test
	$(BIN)/python -m pytest --quiet --timeout 2400 -m "full or not full" tests/faults tests/test_every_backend.py

soak: .venv/.test
	$(BIN)/python benchmarks/soak.py

fault-table: .venv-bench/.bench
	$(BENCH_BIN)/python benchmarks/faults.py

docs: .venv/.test
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

table: .venv/.test
	$(BIN)/python benchmarks/support_table.py

bench: .venv-bench/.bench
	$(BENCH_BIN)/python benchmarks/bench.py
	$(BENCH_BIN)/python benchmarks/ray_bench.py
	$(BENCH_BIN)/python benchmarks/mujoco_bench.py
	$(BENCH_BIN)/python benchmarks/saving.py
	$(BENCH_BIN)/python benchmarks/wrappers.py
	$(BENCH_BIN)/python benchmarks/vector.py
	$(BENCH_BIN)/python benchmarks/many_workers.py
	$(BENCH_BIN)/python benchmarks/many_cores.py

# Each interpreter in a copy of its own, because .venv belongs to one of them.
test-all:
	@for python in $(PYTHONS); do \
		command -v $$python > /dev/null || { echo "$$python is not installed"; continue; }; \
		copy=$$(mktemp -d) && git ls-files -z | xargs -0 cp --parents -t $$copy && \
		echo "make test PYTHON=$$python" && $(MAKE) -C $$copy test PYTHON=$$python && rm -rf $$copy \
		|| exit 1; \
	done

# lowest.txt is for Python 3.11; some old releases have no wheels for newer interpreters.
test-lowest: .venv-lowest/.lowest
	@$(MAKE) --jobs 4 --keep-going --output-sync=target SIDE_BY_SIDE=1 TESTS_BIN=$(LOWEST_BIN) on-ray all-tests

release-check: .venv/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build twine wheel
	$(BIN)/python benchmarks/release_check.py

clean:
	rm -rf .venv .venv-bench .venv-results .venv-lowest dist demo learn build docs/_build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp per target in the virtual environment: installing again waits for a change of the metadata.
.venv/.demo: EXTRAS := atari,classic-control,viz
.venv/.test: EXTRAS := dev,docs,atari,classic-control,box2d,mujoco,dm-control,retro,viz,torch
.venv-bench/.bench: EXTRAS := bench,atari,classic-control,box2d,viz,mujoco,dm-control,ray

.venv-lowest/.lowest: EXTRAS := test,atari,classic-control,box2d,mujoco,dm-control,retro,viz,torch
.venv-lowest/.created: PYTHON := python3.11

.venv/.%: setup.cfg pyproject.toml .venv/.created
	@echo "installing plangym_like[$(EXTRAS)] into .venv"
	@$(BIN)/python -m $(PIP_INSTALL) '.[$(EXTRAS)]'
	@touch $@

.venv-bench/.%: setup.cfg pyproject.toml .venv-bench/.created
	@echo "installing plangym_like[$(EXTRAS)] into .venv-bench"
	@$(BENCH_BIN)/python -m $(PIP_INSTALL) '.[$(EXTRAS)]'
	@touch $@

.venv-lowest/.lowest: setup.cfg pyproject.toml lowest.txt .venv-lowest/.created
	@echo "installing plangym_like[$(EXTRAS)] into .venv-lowest, in the versions of lowest.txt"
	@$(LOWEST_BIN)/python -m $(PIP_INSTALL) '.[$(EXTRAS)]' --constraint lowest.txt
	@touch $@

# With the library that is compared in speed.
.venv-results/.results: setup.cfg pyproject.toml .venv-results/.created
	@echo "installing plangym_like and a library to compare with into .venv-results"
	@$(RESULTS_BIN)/python -m $(PIP_INSTALL) '.[atari,mujoco,dm-control,viz,torch]'
	@$(RESULTS_BIN)/python -m pip install --quiet --disable-pip-version-check pytorch-mppi==0.9.1
	@touch $@

.venv/.created .venv-bench/.created .venv-results/.created .venv-lowest/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "plangym_like needs Python >= 3.11; name one: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv --clear $(@D)
	@touch $@

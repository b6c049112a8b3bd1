# Needs GNU make and Python 3.11 or newer; everything else goes into .venv.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo train-demo test lint docs soak bench models bench-models bench-tpu bench-onchip bench-gpu bench-eight-gpus soak-gpu papers paper-costs paper-figures clean

demo: $(VENV)/.runtime
	@$(BIN)/spmdc demo

# A translator of the names of months, in two minutes; what it makes of names that it has not seen, and curves in months/.
train-demo: $(VENV)/.train
	@$(BIN)/spmdc train spmdc/programs/translate_months.toml --out months

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The pages in docs/ as a site. Pages open from files too, but search asks a server: python -m http.server -d site.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file docs/site_config/mkdocs.yml

# Every property with many more examples, and the tests marked `soak`: hours, or a part of them, as in PART=3/20.
PART ?= 1/1
soak: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "soak or not soak" --hypothesis-profile=soak --part=$(PART)

bench: $(VENV)/.test
	$(BIN)/python -m pytest tests/benchmarks -o python_files="bench_*.py" -s -q

# Models out of public packages, which are installed for it into an environment of their own.
models: $(VENV)-models/.models
	$(VENV)-models/bin/python -m pytest tests/outside -o python_files="check_*.py" -n 2 --dist loadgroup

# What their steps, calls and compiling take beside jax.jit, and what is sent: a table, and the bounds that hold.
bench-models: $(VENV)-models/.models
	$(VENV)-models/bin/python -m pytest tests/outside -o python_files="bench_*.py" -s -q

# What programs take beside XLA's by the TPU compiler, which needs no TPU: those whose names have all the words of CASES,
# as in CASES="moe v3:4x4". WRITE=1 puts the rows into docs/tpu.md. All take hours.
CASES ?=
WRITE ?=
bench-tpu: $(VENV)-tpu/.tpu
	$(VENV)-tpu/bin/python tests/benchmarks/tpu/beside_xla.py $(CASES) $(if $(WRITE),--write)

# Times on the chip and memory by our model, as parts of the TPU compiler's estimates.
bench-onchip: $(VENV)-tpu/.tpu
	$(VENV)-tpu/bin/python tests/benchmarks/tpu/on_chip.py $(CASES) $(if $(WRITE),--write)

# Times of XLA's kernels on a GPU, which has to be there, beside those of our model.
bench-gpu: $(VENV)-gpu/.gpu
	$(VENV)-gpu/bin/python tests/benchmarks/gpu/on_gpu.py $(CASES) $(if $(WRITE),--write)

# What eight GPUs receive and take beside XLA's partitioner: one is enough, and JAX stands in for the others.
bench-eight-gpus: $(VENV)-gpu/.gpu
	$(VENV)-gpu/bin/python tests/benchmarks/gpu/eight_gpus.py $(CASES) $(if $(WRITE),--write)

# Random programs on a GPU beside the reference, for five minutes or as long as SECONDS=1000.
soak-gpu: $(VENV)-gpu/.gpu
	$(VENV)-gpu/bin/python tests/benchmarks/gpu/random_programs.py --seconds=$(or $(SECONDS),300)

# The papers' models as whole training steps, compiled for its machine: a row for each, for some with CASES="2048E 36L".
papers: $(VENV)-tpu/.tpu
	$(VENV)-tpu/bin/python tests/benchmarks/tpu/papers.py $(CASES) $(if $(WRITE),--write)

# What their steps take and send by the model of the machine alone.
paper-costs: $(VENV)-tpu/.tpu
	$(VENV)-tpu/bin/python tests/benchmarks/tpu/paper_costs.py $(CASES) $(if $(WRITE),--write)

# Figures 7, 8 and 9 of GShard, in docs/images: of the table that `make papers` writes, and of the model of the machine.
paper-figures: $(VENV)/.test
	$(BIN)/python -m pytest tests/docs/test_paper_figures.py --update-golden

clean:
	rm -rf $(VENV) build site months *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "spmdc needs Python 3.11 or newer; name it with: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.runtime: $(VENV)/.created pyproject.toml
	$(PIP) install --editable .
	@touch $@

$(VENV)/.train: $(VENV)/.created pyproject.toml
	$(PIP) install --editable '.[train]'
	@touch $@ $(VENV)/.runtime

$(VENV)/.test: $(VENV)/.created pyproject.toml
	$(PIP) install --editable '.[test]'
	@touch $@ $(VENV)/.runtime

$(VENV)/.docs: $(VENV)/.created pyproject.toml
	$(PIP) install --editable '.[docs]'
	@touch $@ $(VENV)/.runtime

$(VENV)-models/.models: pyproject.toml
	$(PYTHON) -m venv $(VENV)-models
	$(VENV)-models/bin/python -m pip --disable-pip-version-check --quiet install --editable '.[models]'
	@touch $@

$(VENV)-tpu/.tpu: pyproject.toml
	$(PYTHON) -m venv $(VENV)-tpu
	$(VENV)-tpu/bin/python -m pip --disable-pip-version-check --quiet install --editable '.[tpu,train]'
	@touch $@

$(VENV)-gpu/.gpu: pyproject.toml
	$(PYTHON) -m venv $(VENV)-gpu
	$(VENV)-gpu/bin/python -m pip --disable-pip-version-check --quiet install --editable . 'jax[cuda13]'
	@touch $@

$(VENV)/.dev: $(VENV)/.created pyproject.toml
	$(PIP) install --editable '.[dev]'
	@touch $@ $(VENV)/.test $(VENV)/.runtime

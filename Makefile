# Type `make` for a list of what there is to make. Needs GNU make 4.3 or newer and Python 3.11 or newer, nothing else.

# Older makes run each line of a recipe on its own, which goes wrong half-way.
$(if $(filter oneshell,$(.FEATURES)),,$(error needs GNU make 4.3 or newer, this is $(MAKE_VERSION)))

SHELL := /bin/sh
.SHELLFLAGS := -ec
.ONESHELL:
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --jobs=2# a -j on the command line wins over this one

# --- What the command line may set -----------------------------------------------------------------------------------

# Parameters of the notebooks. Any of them makes another variant, with a build folder and a figures folder of its own,
# so that the figures in figures/ are always those of the defaults.
lower_NODE := node
lower_BACKEND := backend
lower_SUITE := suite
lower_REPEATS := repeats
known := NODE BACKEND SUITE REPEATS PYTHON VENV

from-command-line = $(filter command,$(firstword $(origin $1)))
$(foreach v,$(.VARIABLES),$(if $(call from-command-line,$v),$(if $(filter $v,$(known)),,\
  $(error unknown variable $v; known: $(known)))))

given := $(strip $(foreach p,NODE BACKEND SUITE REPEATS,$(if $(call from-command-line,$p),$(if $(strip $($p)),$p))))
values := $(foreach p,$(given),$(lower_$p)-$($p))
# Values become names of folders and words of a shell command: nothing that make or a shell reads as more than a letter.
comma := ,
open := (
close := )
special := : % \# " ' ; * ? & | < > ` $$ \ ~ ! = [ ] { } ^ $(comma) $(open) $(close)
$(foreach c,$(special),$(if $(findstring $c,$(values)),$(error $(given): a value may not contain $c)))
empty :=
variant := $(if $(given),$(subst /,_,$(subst $(empty) $(empty),.,$(values))),default)
BUILD := build/$(variant)
FIGURES := figures$(if $(given),/$(variant))
REPORT := build$(if $(given),/$(variant))/report.html
SITE := build$(if $(given),/$(variant))/docs

# --- The environment -------------------------------------------------------------------------------------------------

# `make VENV=/path` uses an environment that you keep (conda's, say): nothing is installed into it.
ifeq ($(origin VENV),command line)
ready-figures :=
ready-docs :=
ready-all :=
else
VENV := .venv
ready-figures := .venv/.ready-figures
ready-docs := .venv/.ready-docs
ready-all := .venv/.ready-all
endif
PY := $(VENV)/bin/python

# Set-up begins afresh when it never got to its end, was cut short later, or when its Python has gone.
afresh := $(if $(and $(realpath .venv/bin/python),$(wildcard .venv/.ready-figures)),$(wildcard .venv/.unfinished),yes)

candidates := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)

define find-python
python=
for p in $(candidates); do
  if "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$p; break; fi
done
if [ -z "$$python" ]; then
  echo "error: needs Python 3.11 or newer, found none ($(candidates)); install one or name it: make PYTHON=/path/to/python3" >&2
  exit 1
fi
if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then
  echo "error: $$python lacks its venv module; install it (Debian, Ubuntu: apt install python3-venv)" >&2
  exit 1
fi
endef

# While .unfinished exists, pip may have left packages half installed; a pip that failed on its own has changed nothing.
define install
trap 'exit 130' INT TERM
touch .venv/.unfinished
.venv/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[$1]' || {
  rm -f .venv/.unfinished
  echo "error: pip could not install what pyproject.toml asks for; its message is above" >&2
  exit 1
}
rm -f .venv/.unfinished
touch $@
endef

.venv/.ready-figures: pyproject.toml constraints.txt $(if $(afresh),afresh)
	@if [ -n "$(afresh)" ]; then
	  $(find-python)
	  echo "Setting up .venv with $$($$python --version): once, one to three minutes, 600 MB of disk ..."
	  "$$python" -m venv --clear .venv
	else
	  echo "pyproject.toml or constraints.txt changed: bringing .venv up to date ..."
	fi
	$(call install,notebooks)

.venv/.ready-all: .venv/.ready-figures
	@echo "Adding torch and the test tools to .venv: once, one to five minutes, 1 GB of disk (3 to 6 GB where torch brings CUDA) ..."
	$(call install,notebooks$(comma)sweep$(comma)gpu$(comma)docs$(comma)test)

.venv/.ready-docs: .venv/.ready-figures
	@echo "Adding Sphinx to .venv: once, half a minute, 40 MB of disk ..."
	$(call install,notebooks$(comma)docs)

.PHONY: afresh a-figure-is-gone
afresh a-figure-is-gone:

# --- Figures ---------------------------------------------------------------------------------------------------------

notebooks := $(sort $(wildcard notebooks/*.ipynb))
names := $(notebooks:notebooks/%.ipynb=%)
done := $(names:%=$(BUILD)/%.done)

.PHONY: figures report docs lab measure test test-amd test-device test-lab style lint bench clean help

figures: $(done) ## make every figure; again at once: only those whose notebook, data or code changed
	@echo "up to date: $(words $(names)) of $(words $(names)) notebooks; their figures are in $(FIGURES)/"

# What else a notebook depends on (data files it read, modules it imported) is in a .d file that its run wrote.
$(done): $(BUILD)/%.done: notebooks/%.ipynb | $(ready-figures) $(if $(filter docs,$(MAKECMDGOALS)),$(ready-docs))
	@$(PY) -m c3lib.book $< --quiet --out '$(FIGURES)' --build '$(BUILD)' $(foreach p,$(given),--if-known '$(lower_$p)=$($p)')

-include $(names:%=$(BUILD)/%.d)

report: figures ## one HTML page with all executed notebooks
	@$(PY) -m c3lib.report --build '$(BUILD)' --out '$(REPORT)'

docs: figures | $(ready-docs) ## the documentation as a site, in build/docs; made and read without a network
	@$(PY) -m c3lib.site --build '$(BUILD)' --out '$(SITE)'

lab: $(ready-all) ## open the notebooks in JupyterLab
	@exec $(PY) -m jupyterlab --ServerApp.ip=127.0.0.1 --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks

# Looked at before anything is set up or asked of the GPUs, which takes minutes.
ifneq ($(filter measure,$(MAKECMDGOALS)),)
nodes := $(patsubst data/hardware/%.toml,%,$(sort $(wildcard data/hardware/*.toml)))
$(if $(strip $(NODE)),,$(error say which node this machine is: make measure NODE=mi300x_8; known: $(nodes)))
$(if $(or $(word 2,$(NODE)),$(filter-out $(nodes),$(NODE))),$(error unknown node '$(NODE)'; known: $(nodes)))
endif

# Not in .venv where VENV names an environment that has the GPU's PyTorch: `make measure NODE=mi300x_8 VENV=/path`.
measure: $(ready-all) ## measure on this machine's GPUs: make measure NODE=mi300x_8; what it can measure is said first
	@$(PY) -m c3lib doctor
	$(PY) -m c3lib measure --node '$(NODE)' $(if $(SUITE),--suite '$(SUITE)') $(if $(REPEATS),--repeats '$(REPEATS)')

# --- Checks ----------------------------------------------------------------------------------------------------------

test: style ## style, then every tier of tests that this machine can run
	@exec $(PY) -m pytest -n 2 --dist worksteal -p no:benchmark --ignore=tests/lab/test_notebooks_lab.py

# `make test` runs all notebooks without a browser, and the explorer in one where there is a Chromium.
test-lab: $(ready-all) ## every notebook by Run All in JupyterLab, in a real browser; screenshots are in build/lab
	@exec $(PY) -m pytest -p no:benchmark -p no:xdist tests/lab

# One process: tests that time a GPU share it with nothing.
test-device: $(ready-all) ## the tests that need a GPU; where there is none they are reported as not run, and make fails
	@exec $(PY) -m pytest -m device -p no:benchmark -p no:xdist tests/device

# What needs no AMD GPU: AMD's header, our double of AMD's library, and that library itself (fetched into build/amd, once)
# over a model of the driver. Where one cannot be had it is reported as not run, with what would get it, and make fails.
test-amd: $(ready-all) ## the AMD backend without an AMD GPU, in layers; each says what it proves and what not
	@exec $(PY) -m pytest -n 2 --dist worksteal -m amd -p no:benchmark tests/amd

# No cache: whether an import is c3lib's own depends on what lies beside it, and a cached verdict outlives that.
style: $(ready-all)
	@$(PY) -m ruff check --quiet --no-cache
	$(PY) -m ruff format --check --quiet
	$(PY) -m codespell_lib

lint: style ## style and spelling, then types
	@$(PY) -m mypy --no-error-summary

bench: $(ready-all) ## speed and memory, by pytest-benchmark
	@exec $(PY) -m pytest benchmarks --benchmark-columns=min,median,iqr,ops,rounds

clean: ## remove all that make made, but for the published figures
	@rm -rf build .venv *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .benchmarks figures/*/
	find c3lib tests benchmarks $(wildcard notebooks) -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf

help: ## print this
	@echo "make TARGET [-j N], where TARGET is one of"
	sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1	\2/p' Makefile | while IFS='	' read -r target what; do
	  printf '  %-11s %s\n' "$$target" "$$what"
	done
	echo "Parameters, for a variant of the figures in a folder of its own (figures/node-h200_1/):"
	echo "  make figures NODE=h200_1 BACKEND=model SUITE=conccl30 REPEATS=9"
	echo "Environment: PYTHON=/path/to/python3 to set .venv up with; VENV=/path to use one that you keep."

# Everything starts from a bare clone and a Python of at least 3.11.
#
#   make demo     train a small GPT on 8 virtual devices at every ZeRO stage
#   make test     lint, then the whole suite on the default and the newest Python
#   make lint     the linters alone
#   make figures  compile the table of figures for GPUs that are not there
#   make clean    remove what the others made
#
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
RUN = $(PYTHON) -m tools.run_suite

.PHONY: demo test lint figures clean check-python

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "jzero needs Python 3.11 or newer, but \"$(PYTHON)\" is %d.%d.\nRemedy: make PYTHON=python3.12 ..., with any newer interpreter that you have." % sys.version_info[:2])'

demo test lint figures: check-python
	@$(RUN) $@

clean:
	rm -rf .venv .venv-newest out build dist .pytest_cache .ruff_cache \
	  .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

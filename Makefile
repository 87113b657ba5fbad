# Everything a person does with Conch. Variables: MODEL_ID, TARGET, INSTANCES, PORT (see README).
PYTHON ?= python3
TARGET ?= openvino
export MODEL_ID TARGET INSTANCES PORT
SERVE := .venv/serve
BUILD := .venv/build
# Processes find tritonserver and its Python here, whichever environment runs the command.
RUN := $(SERVE)/bin/python

.PHONY: help setup demo serve restart engines test lint bench evaluate clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(SERVE)/.done: requirements/serve.txt requirements/gateway.txt requirements/local.txt
	$(PYTHON) -m venv $(SERVE)
	$(SERVE)/bin/pip install -q --no-deps nvidia-pytriton==0.7.0
	$(SERVE)/bin/pip install -q $(foreach file,$^,-r $(file)) 2>&1 | { grep -v 'nvidia-pytriton 0.7.0 requires\|dependency resolver' || true; }
	touch $@

$(BUILD)/.done: requirements/build.txt
	$(PYTHON) -m venv $(BUILD)
	$(BUILD)/bin/pip install -q -r requirements/build.txt
	touch $@

$(BUILD)/.tests: $(BUILD)/.done requirements/test.txt requirements/gateway.txt requirements/local.txt
	$(BUILD)/bin/pip install -q -r requirements/build.txt -r requirements/gateway.txt -r requirements/local.txt -r requirements/test.txt
	touch $@

setup: $(SERVE)/.done $(BUILD)/.done ## the two Python environments and nginx
	@scripts/install_nginx

engines: $(BUILD)/.done ## build the bundles of MODEL_ID (default: the miniatures) for TARGET
	$(BUILD)/bin/python -m build engines

demo: setup engines ## start everything, transcribe a recording, print it, stop
	$(RUN) -m scripts.demo

serve: setup engines ## run in the foreground until Ctrl-C
	$(RUN) -m scripts.local serve

restart: ## restart the instances of a running `make serve` one by one
	$(RUN) -m scripts.local restart

test: setup $(BUILD)/.tests engines ## lint, then every test but the compose tests
	@scripts/install_test_tools
	$(MAKE) lint
	$(BUILD)/bin/python -m pytest

lint: $(BUILD)/.tests ## ruff and mypy
	$(BUILD)/bin/ruff check .
	$(BUILD)/bin/ruff format --check .
	$(BUILD)/bin/mypy

bench: setup $(BUILD)/.tests ## measure against faster-whisper and transformers; writes docs/benchmarks
	$(BUILD)/bin/python -m scripts.bench

evaluate: $(BUILD)/.tests ## the miniature Whisper's held-out figures
	@scripts/install_test_tools
	$(BUILD)/bin/python -m miniatures.speech.evaluate

clean: ## remove environments, engines, logs
	rm -rf .venv .conch engines weights

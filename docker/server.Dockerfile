# One server image per target. `docker build --target`:
#   openvino            tritonserver on a CPU, from the wheel; neither torch nor a compiler in it
#   openvino-builder    exports OpenVINO graphs with torch
#   torch, torch-builder     NVIDIA's image with PyTorch from PyPI: it builds and serves
#   trtllm, trtllm-builder   NVIDIA's image with TensorRT-LLM: it builds and serves
#   tensorrt, tensorrt-builder   NVIDIA's plain image, whose trtexec and TensorRT backend the other lacks: encoders
# pip's certificate authority may be given as a secret: --secret id=ca,src=FILE.
# --chmod: what a checkout under umask 077 has is readable for the user of the containers, too.
ARG BASE=debian:bookworm-slim
ARG TRTLLM_BASE=nvcr.io/nvidia/tritonserver:25.07-trtllm-python-py3
ARG NVIDIA_BASE=nvcr.io/nvidia/tritonserver:25.07-py3
ARG TORCH_BASE=nvcr.io/nvidia/tritonserver:26.06-py3

################################################################################
# Wheels from elsewhere: --build-context wheels=FOLDER. Empty otherwise.
FROM scratch AS wheels

################################################################################
# Debian's Python, and the user of every Conch container.
# Why not trixie: its Python 3.13 needs numpy 2, which Triton 24.10's Python backend misreads (docs/decisions/0003-images.md).
FROM ${BASE} AS python
# Unpinned: a Debian release only gets fixes, and pinning would keep the faults.
# hadolint ignore=DL3008
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    rm -f /etc/apt/apt.conf.d/docker-clean && apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends ca-certificates libpython3.11 python3 >/dev/null \
    && useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin conch \
    && install -d -o conch -g conch /engines /weights
WORKDIR /opt/conch
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

################################################################################
FROM python AS pip
# hadolint ignore=DL3008
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null \
    && python3 -m venv /opt/venv

################################################################################
# What tritonserver needs. OpenVINO's GPU and NPU plug-ins, other Pythons' stubs and pip itself are left out.
FROM pip AS serving
COPY requirements/server.txt requirements/guard.txt requirements/serve.txt requirements/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca,target=/run/ca.crt --mount=from=wheels,target=/run/wheels \
    if [ -s /run/ca.crt ]; then export PIP_CERT=/run/ca.crt; fi \
    && pip install -q --no-deps --find-links /run/wheels nvidia-pytriton==0.7.0 -r requirements/serve.txt \
    && pip install -q --find-links /run/wheels -r requirements/server.txt \
    && pip uninstall -q -y pip setuptools \
    && site=/opt/venv/lib/python3.11/site-packages \
    && rm -rf "$site"/openvino/libs/cache.json "$site"/openvino/libs/*_intel_gpu_* "$site"/openvino/libs/*_intel_npu_* "$site"/openvino/include \
    && find "$site"/pytriton/tritonserver/python_backend_stubs -mindepth 1 -maxdepth 1 ! -name 3.11 -exec rm -r {} +

################################################################################
# torch's CPU build; its index is a build argument, since PyPI's own wheel carries CUDA.
FROM pip AS building
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY requirements/builder.txt requirements/build.txt requirements/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca,target=/run/ca.crt --mount=from=wheels,target=/run/wheels \
    if [ -s /run/ca.crt ]; then export PIP_CERT=/run/ca.crt; fi \
    && pip install -q --find-links /run/wheels ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -r requirements/build.txt

################################################################################
FROM python AS openvino
LABEL org.opencontainers.image.title="conch server (openvino)" \
      org.opencontainers.image.description="Triton Inference Server with OpenVINO engines with Conch's guard" \
      org.opencontainers.image.version="0.2.0"
COPY --from=serving /opt/venv /opt/venv
COPY --chmod=755 conch conch
COPY --chmod=755 ops/__init__.py ops/child.py ops/ranks.py ops/
COPY --chmod=755 ops/guard ops/guard
# Backends must be real files on a file system that may be executed; a tmpfs may not.
RUN python3 -c "from pathlib import Path; from ops.guard.supervise.server import find_tritonserver; find_tritonserver(home := Path('/opt/conch/state'), home)"
USER 10001:10001
CMD ["python3", "-m", "ops.guard", "--help"]

################################################################################
# pip stays in it: a stage with a copy of the libraries alone would keep a gigabyte twice and take longer to make.
FROM building AS openvino-builder
LABEL org.opencontainers.image.title="conch builder (openvino)" \
      org.opencontainers.image.description="Fetches weights and exports OpenVINO graphs" \
      org.opencontainers.image.version="0.2.0"
COPY --chmod=755 . .
USER 10001:10001
CMD ["python3", "-m", "ops.deploy"]

################################################################################
# The image's own Python, which tritonserver's stubs embed, gets the libraries: its torch wheel brings CUDA. The launchers of kernels in Triton's
# language are compiled with the image's compiler when a container first starts, into a volume of its own: its file system is read-only, and nothing in
# its /tmp may be executed.
FROM ${TORCH_BASE} AS torch
LABEL org.opencontainers.image.title="conch server (torch)" \
      org.opencontainers.image.description="Triton Inference Server with PyTorch engines with Conch's guard" \
      org.opencontainers.image.version="0.2.0"
COPY requirements/torch.txt requirements/server.txt requirements/guard.txt requirements/builder.txt /opt/conch/requirements/
# apt is asked only where the image lacks a compiler or Python's headers.
# hadolint ignore=DL3008,DL3009
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca,target=/run/ca.crt --mount=from=wheels,target=/run/wheels \
    if [ -s /run/ca.crt ]; then export PIP_CERT=/run/ca.crt; fi \
    && { { command -v gcc || command -v clang; } >/dev/null && python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null \
         || { apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev python3-dev >/dev/null; }; } \
    && PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install -q --find-links /run/wheels -r /opt/conch/requirements/torch.txt \
    && useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin conch && install -d -o conch -g conch /engines /weights /var/cache/conch
WORKDIR /opt/conch
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 TRITON_CACHE_DIR=/var/cache/conch/triton
VOLUME /var/cache/conch
COPY --chmod=755 conch conch
COPY --chmod=755 ops/__init__.py ops/child.py ops/ranks.py ops/
COPY --chmod=755 ops/guard ops/guard
USER 10001:10001
CMD ["python3", "-m", "ops.guard", "--help"]

FROM torch AS torch-builder
COPY --chmod=755 . .
CMD ["python3", "-m", "ops.deploy"]

################################################################################
# NVIDIA's image holds TensorRT-LLM, torch, transformers and mpirun, at versions that belong together: Conch's own libraries live apart, in
# a virtual environment, and TensorRT-LLM's tools are run with the image's own Python.
FROM ${TRTLLM_BASE} AS trtllm
ARG TRTLLM_BASE
LABEL org.opencontainers.image.title="conch server (trtllm)" \
      org.opencontainers.image.description="Triton Inference Server with TensorRT-LLM engines with Conch's guard" \
      org.opencontainers.image.version="0.2.0"
COPY requirements/server.txt requirements/guard.txt requirements/builder.txt /opt/conch/requirements/
# apt is asked only where the image lacks the venv module.
# hadolint ignore=DL3008,DL3009
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca,target=/run/ca.crt \
    if [ -s /run/ca.crt ]; then export PIP_CERT=/run/ca.crt; fi \
    && { python3 -m venv /opt/venv || { apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv && python3 -m venv /opt/venv; }; } \
    && /opt/venv/bin/pip install -q -r /opt/conch/requirements/server.txt -r /opt/conch/requirements/builder.txt \
    && useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin conch && install -d -o conch -g conch /engines /weights
WORKDIR /opt/conch
# The base's name is stamped on every bundle: give it with its digest, TRTLLM_BASE=…@sha256:…, and bundles record that.
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 CONCH_BASE_IMAGE=${TRTLLM_BASE}
COPY --chmod=755 conch conch
COPY --chmod=755 ops/__init__.py ops/child.py ops/ranks.py ops/
COPY --chmod=755 ops/guard ops/guard
USER 10001:10001
CMD ["python3", "-m", "ops.guard", "--help"]

FROM trtllm AS trtllm-builder
COPY --chmod=755 . .
CMD ["python3", "-m", "ops.deploy"]

################################################################################
# The plain image of the same release: TensorRT's backend serves plans, Python's the façades, with what those import. OpenVINO is left out.
FROM ${NVIDIA_BASE} AS tensorrt
ARG NVIDIA_BASE
LABEL org.opencontainers.image.title="conch server (tensorrt)" \
      org.opencontainers.image.description="Triton Inference Server with TensorRT plans of encoders with Conch's guard" \
      org.opencontainers.image.version="0.2.0"
COPY requirements/server.txt requirements/guard.txt requirements/serve.txt requirements/builder.txt /opt/conch/requirements/
# hadolint ignore=DL3008,DL3009
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca,target=/run/ca.crt \
    if [ -s /run/ca.crt ]; then export PIP_CERT=/run/ca.crt; fi \
    && { python3 -m venv /opt/venv || { apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv && python3 -m venv /opt/venv; }; } \
    && /opt/venv/bin/pip install -q -r /opt/conch/requirements/server.txt -r /opt/conch/requirements/builder.txt \
    && sed -i '/^openvino/d' /opt/conch/requirements/serve.txt \
    && PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install -q -r /opt/conch/requirements/serve.txt \
    && useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin conch && install -d -o conch -g conch /engines /weights
WORKDIR /opt/conch
# Stamped on every bundle, as TRTLLM_BASE is.
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 CONCH_BASE_IMAGE=${NVIDIA_BASE}
COPY --chmod=755 conch conch
COPY --chmod=755 ops/__init__.py ops/child.py ops/ranks.py ops/
COPY --chmod=755 ops/guard ops/guard
USER 10001:10001
CMD ["python3", "-m", "ops.guard", "--help"]

################################################################################
# torch traces the networks on a CPU; trtexec alone uses the GPU.
FROM tensorrt AS tensorrt-builder
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
USER 0:0
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca,target=/run/ca.crt \
    if [ -s /run/ca.crt ]; then export PIP_CERT=/run/ca.crt; fi \
    && /opt/venv/bin/pip install -q ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -r requirements/tensorrt.txt
COPY --chmod=755 . .
USER 10001:10001
CMD ["python3", "-m", "ops.deploy"]

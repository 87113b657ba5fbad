# A stand-in of NVIDIA's nvcr.io/nvidia/tritonserver:25.07-trtllm-python-py3, for tests only: that of the plain image with what tests/fakes has for
# TensorRT-LLM: its tools, metadata, template and backend, nvidia-smi and mpirun. OpenVINO graphs (context `graphs`) do the backend's arithmetic.
ARG PLAIN
ARG BUILDER
FROM ${BUILDER} AS builder
FROM ${PLAIN}
# Where the image's own Python finds them: torch for conversions, the packages that façades import, and OpenVINO for the backend.
COPY --from=builder /opt/venv/lib/python3.11/site-packages /usr/local/lib/python3.11/dist-packages
COPY --from=contract . /opt/contract/tests/contract
COPY --from=fakes . /opt/contract/tests/fakes
COPY --from=graphs . /opt/contract/graphs
RUN cp -r /opt/contract/tests/fakes/trtllm_backend /opt/tritonserver/backends/tensorrtllm && chmod -R a+rX /opt/contract /opt/tritonserver/backends \
    && cd /opt/contract && python3 -c "from pathlib import Path; from tests.fakes.nvidia_image import make_image; make_image(Path('/'), site=Path('/usr/local/lib/python3.11/dist-packages'))"
ENV CONTRACT_GRAPHS=/opt/contract/graphs

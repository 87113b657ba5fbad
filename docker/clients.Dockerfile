# NVIDIA's own clients, which the image of TensorRT-LLM holds, with what they import and the image lacks: `make gpu-report` runs them.
# "If not already installed, pip install tritonclient[all]" (docs/encoder_decoder.md of tensorrtllm_backend, r25.07).
ARG SERVER
FROM ${SERVER}
USER 0:0
COPY requirements/nvidia-clients.txt /opt/conch/requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    PIP_BREAK_SYSTEM_PACKAGES=1 /usr/bin/python3 -m pip install -q -r /opt/conch/requirements/nvidia-clients.txt
USER 10001:10001
ENTRYPOINT ["/usr/bin/python3"]

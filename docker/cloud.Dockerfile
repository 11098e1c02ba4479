# The cloud: `outrider cloud serve`, for x86-64 and aarch64. EXTRA chooses what runs the target:
#   cloud         transformers; torch comes as a wheel, on x86-64 with CUDA
#   cloud-llama   llama.cpp on the CPU, compiled here for any processor of the architecture
# Build it in the repository's root: docker build -f docker/cloud.Dockerfile -t outrider-cloud .
FROM python:3.12-slim-bookworm AS build
ARG EXTRA=cloud
# Compilers differ from day to day in Debian's patches alone, and stay in this stage.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential cmake \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE MANIFEST.in ./
COPY protocol protocol
COPY runtime runtime
COPY edge_client edge_client
COPY cloud_server cloud_server
COPY quantize quantize
COPY simulator simulator
COPY cli cli
COPY benchmarks benchmarks
COPY models models
ENV CMAKE_ARGS=-DGGML_NATIVE=OFF
RUN python -m venv /opt/outrider \
    && /opt/outrider/bin/pip install --no-cache-dir -c constraints.txt ".[${EXTRA}]"

FROM python:3.12-slim-bookworm
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home outrider \
    && install -d -o outrider /home/outrider/.cache /home/outrider/.config/outrider
COPY --from=build /opt/outrider /opt/outrider
COPY docker/health.py /opt/health.py
ENV PATH=/opt/outrider/bin:$PATH \
    PYTHONUNBUFFERED=1
USER 1000:1000
WORKDIR /home/outrider
EXPOSE 8471
# Loading a large target takes minutes; until then /health says 503.
HEALTHCHECK --interval=30s --timeout=5s --start-period=600s CMD ["python", "/opt/health.py", "8471"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["outrider"]
CMD ["cloud", "serve", "--log-format", "json"]

# The edge: `outrider serve` with ONNX drafters, from wheels alone, for x86-64 and aarch64.
# Build it in the repository's root: docker build -f docker/edge.Dockerfile -t outrider-edge .
FROM python:3.12-slim-bookworm AS build
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
RUN python -m venv /opt/outrider \
    && /opt/outrider/bin/pip install --no-cache-dir -c constraints.txt ".[edge]"

FROM python:3.12-slim-bookworm
RUN useradd --uid 1000 --create-home outrider \
    && install -d -o outrider /home/outrider/.cache /home/outrider/.config/outrider
COPY --from=build /opt/outrider /opt/outrider
COPY docker/health.py /opt/health.py
ENV PATH=/opt/outrider/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    OMP_NUM_THREADS=1
USER 1000:1000
WORKDIR /home/outrider
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["python", "/opt/health.py", "8080"]
ENTRYPOINT ["outrider"]
CMD ["serve"]

# Everything that needs no GPU: controller, task making, comparing, retriever, viewer; with EXTRAS=local,worker also
# the run `tiny` (`make image-local`). Build from the repository's root, with the base by digest:
#   docker build -f k8s/images/worker.Dockerfile --build-arg BASE=python:3.11-slim@sha256:... -t scope-selfplay .
ARG BASE=docker.io/library/python:3.11-slim
FROM ${BASE}

# worker is slim: it tokenizes, with transformers, and has no torch; local adds torch, to train or serve on the CPU.
ARG EXTRAS=worker
# pip reads these itself. The index of torch's CPU builds: the plain build brings several GB of CUDA.
ARG PIP_EXTRA_INDEX_URL
# Without any index: 1, and a page with links to wheels.
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS

WORKDIR /app
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY scope_selfplay scope_selfplay
COPY retrieval retrieval
COPY jobs jobs
COPY prompts prompts
COPY k8s k8s
RUN pip install --no-cache-dir --constraint constraints.txt --constraint k8s/images/lock.txt ".[${EXTRAS}]" \
    && pip check \
    && python -m compileall -q /app/jobs \
    && useradd --no-create-home --uid 10001 scope

ENV HF_HUB_OFFLINE=1 \
    OMP_NUM_THREADS=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8000
# Manifests name the command; alone the image explains itself.
CMD ["scope", "--help"]

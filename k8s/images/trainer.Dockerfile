# Training and serving on GPUs: a vLLM image, because trl[vllm] 1.16 takes vLLM 0.22 to 0.31 and its torch. Build from
# the repository's root, with the base by digest:
#   docker build -f k8s/images/trainer.Dockerfile --build-arg BASE=vllm/vllm-openai:v0.31.0@sha256:... -t scope-trainer .
ARG BASE=docker.io/vllm/vllm-openai:v0.31.0
FROM ${BASE}

# Without a package index: 1, and a page with links to wheels. pip reads both itself.
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS

# What `tracking.report_to` names, such as wandb==0.23.0: packages that the lock does not have, within its versions.
ARG TRACKERS=

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /app
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY scope_selfplay scope_selfplay
COPY retrieval retrieval
COPY jobs jobs
COPY prompts prompts
COPY k8s k8s
# What the base image brings for the GPU stays as it is; everything else is added around it. Trackers are several words.
# hadolint ignore=SC2086
RUN python3 -m pip freeze | grep -iE '^(torch|torchvision|torchaudio|triton|vllm|flashinfer[^=]*|nvidia[^=]*)==' > /tmp/base.txt \
    && python3 -m pip install --no-cache-dir --constraint /tmp/base.txt --constraint constraints.txt \
        --constraint k8s/images/lock.txt ".[train,math,mcp,retrieval]" ${TRACKERS} \
    && python3 -c "import importlib.metadata as m; v = m.version('vllm'); assert (0, 22) <= tuple(map(int, v.split('.')[:2])) <= (0, 31), v" \
    && ln -sf "$(command -v python3)" /usr/local/bin/python \
    && rm /tmp/base.txt \
    && python3 -m pip check

ENV HF_HUB_OFFLINE=1 \
    VLLM_NO_USAGE_STATS=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8000
ENTRYPOINT []
CMD ["scope", "--help"]

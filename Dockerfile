# A server of models in /models:
#   docker build -t qkv .
#   docker run --rm --stop-timeout 70 -p 127.0.0.1:8000:8000 -v "$PWD/runs:/models:ro" -e QKV_API_KEYS=... qkv /models/demo
FROM python:3.12-slim

# A C compiler: the CPU kernels are compiled for the processor on which the container runs, on first use.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev libgomp1 && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/qkv
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
# pip reads it: the index of PyTorch's CPU build makes an image without the CUDA libraries.
ARG PIP_EXTRA_INDEX_URL
RUN pip install --no-cache-dir --constraint constraints.txt ".[serve]" && rm -rf build

RUN useradd --create-home qkv
USER qkv
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/ready', timeout=2)"]
# SIGTERM, which `docker stop` sends, finishes the accepted requests, unless Docker's stop timeout (10 s) ends first.
ENTRYPOINT ["qkv", "serve", "--host", "0.0.0.0"]

# The service with its embedded checkpoint. It uses a GPU if there is one. docs/how-to/deploy.md describes
# the options; the commands are:
#
#   docker build -t eulerlora .                                     5 GB, for a GPU or a CPU
#   docker build -t eulerlora --build-arg TORCH=cpu .               1 GB, for a CPU
#   docker run --read-only --tmpfs /tmp -p 127.0.0.1:8000:8000 eulerlora
#   docker run --read-only --tmpfs /tmp -p 127.0.0.1:8000:8000 -v "$PWD/checkpoints:/checkpoints:ro" \
#       eulerlora eulerlora serve /checkpoints/1 --host 0.0.0.0 --port 8000 --open
#
# The image runs under any user id (`--user 12345`) and writes only to /tmp. It has no training
# dependencies: `eulerlora train` reports what to install.
# For a deployment, name the base with its digest: --build-arg BASE=NAME@sha256:... (docs/how-to/deploy.md)
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1
RUN python -m venv /opt/eulerlora
ENV PATH=/opt/eulerlora/bin:$PATH
WORKDIR /source
COPY requirements/serve.lock requirements/
# Triton, headers, static libraries and device bitcode require a C compiler, which the image does
# not have. NumPy's tests stay because numpy.testing imports from them.
# TORCH=cpu installs torch's CPU wheels, which uv finds. The lock has no hashes of them.
ARG TORCH=
COPY requirements/uv.lock requirements/without_torch.awk requirements/
RUN if [ "$TORCH" != cpu ]; then \
        pip install --no-deps --require-hashes --requirement requirements/serve.lock \
        && pip uninstall --yes triton; \
    else \
        awk -f requirements/without_torch.awk requirements/serve.lock > cpu.lock \
        && pip install --no-deps --require-hashes --requirement cpu.lock \
        && python -m venv /opt/uv \
        && /opt/uv/bin/pip install --require-hashes --requirement requirements/uv.lock \
        && /opt/uv/bin/uv pip install --python /opt/eulerlora/bin/python --no-deps --torch-backend cpu \
            $(grep -oE '^torch(vision)?==[0-9.]+' requirements/serve.lock); \
    fi \
    && cd /opt/eulerlora/lib/python3*/site-packages \
    && find . -type f \( -name '*.a' -o -path './nvidia/*.bc' -o -path './torch/bin/protoc*' \
        -o -name 'libcusolverMg.so*' \) -delete \
    && find . -type d \( -name include -o -name tests -not -path './numpy/*' \) \
        -prune -exec rm -r {} +
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY eulerlora_contract eulerlora_contract
COPY eulerlora_client eulerlora_client
COPY eulerlora eulerlora
COPY service service
COPY clinic clinic
RUN pip install --no-deps --no-build-isolation ./eulerlora_contract ./eulerlora_client . ./clinic \
    && pip uninstall --yes pip
# The list of components, made by a program that does not get into the image.
COPY requirements/sbom.lock requirements/
RUN python -m venv /opt/sbom \
    && /opt/sbom/bin/pip install --require-hashes --requirement requirements/sbom.lock \
    && /opt/sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
        --output-file /opt/eulerlora/sbom.cdx.json /opt/eulerlora/bin/python

FROM ${BASE}
# The code; the embedded checkpoint (NOTICE).
LABEL org.opencontainers.image.licenses="Apache-2.0 AND CC-BY-NC-4.0"
# No program in the image can change its user.
RUN find / -xdev -type f -perm /6000 -exec chmod ug-s {} +
COPY --from=build /opt/eulerlora /opt/eulerlora
# The mount point of a volume for the audit log: a new volume takes the owner of this folder.
RUN install --directory --owner=10001 --group=10001 --mode=0750 /var/lib/eulerlora
# The build compiled the bytecode. A user id without a passwd entry has no home folder and no name,
# which getpass and the caches of torch require.
ENV PATH=/opt/eulerlora/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    USER=eulerlora \
    XDG_CACHE_HOME=/tmp/cache \
    TORCHINDUCTOR_CACHE_DIR=/tmp/cache/inductor
WORKDIR /tmp
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-I", "-S", "-c", "from http.client import HTTPConnection; c = HTTPConnection('127.0.0.1', 8000, timeout=4); c.request('GET', '/readyz'); raise SystemExit(c.getresponse().status != 200)"]
# Whoever starts the container decides who can reach the port: this machine only, or clients with a
# key (--keys). Without keys it answers to localhost only, unless EULERLORA_SERVE_ALLOWED_HOSTS names
# other hosts.
CMD ["eulerlora", "serve", "--host", "0.0.0.0", "--port", "8000", "--open"]

# The service with its embedded checkpoint, on a GPU where there is one; another checkpoint is
# mounted and named (docs/deploy.md has the rest):
#
#   docker build -t eulerlora .
#   docker run --read-only --tmpfs /tmp -p 127.0.0.1:8000:8000 eulerlora
#   docker run --read-only --tmpfs /tmp -p 127.0.0.1:8000:8000 -v "$PWD/checkpoint:/checkpoint:ro" \
#       eulerlora eulerlora serve /checkpoint --host 0.0.0.0 --port 8000 --open
#
# Any user id will do (`--user 12345`): nothing is written but under /tmp.
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1
RUN python -m venv /opt/eulerlora
ENV PATH=/opt/eulerlora/bin:$PATH
WORKDIR /source
COPY requirements/runtime.lock requirements/
# Triton and the headers, static libraries and device bitcode are of use only with a C compiler,
# which the image has not. NumPy's tests stay: numpy.testing imports from them.
RUN pip install --require-hashes --requirement requirements/runtime.lock \
    && pip uninstall --yes triton \
    && cd /opt/eulerlora/lib/python3*/site-packages \
    && find . -type f \( -name '*.a' -o -path './nvidia/*.bc' -o -path './torch/bin/protoc*' \
        -o -name 'libcusolverMg.so*' \) -delete \
    && find . -type d \( -name include -o -name tests -not -path './numpy/*' \) \
        -prune -exec rm -r {} +
COPY pyproject.toml README.md LICENSE ./
COPY eulerlora eulerlora
COPY training training
COPY service service
RUN pip install --no-deps --no-build-isolation . && pip uninstall --yes pip

FROM ${BASE}
# Nobody becomes another user in here.
RUN find / -xdev -type f -perm /6000 -exec chmod ug-s {} +
COPY --from=build /opt/eulerlora /opt/eulerlora
# What a volume for the audit log is mounted on: a new volume belongs to whom its folder belongs.
RUN install --directory --owner=10001 --group=10001 --mode=0750 /var/lib/eulerlora
# Bytecode was written at the build. An id without a passwd entry has no home and no user name,
# which getpass and torch's caches ask for.
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
# What is published is decided outside of the container: on this machine alone, or with --keys.
CMD ["eulerlora", "serve", "--host", "0.0.0.0", "--port", "8000", "--open"]

"""Deploy behind nginx.

Serve over HTTPS with keys and limits, and see what clients get. The script needs `nginx` and
`openssl`, runs without root, and writes to the folder `proxy`.
"""

# %% [markdown]
# **A key for each client.** In a shell: `eulerlora keys new clinic --file keys.jsonl
# --requests-per-minute 5`. The key is printed once; the file stores its hash. The low limit shows
# below what happens above it. A client sends its key as `Authorization: Bearer KEY`.

# %%
import atexit
import os
import socket
import ssl
import subprocess
import sys
from http.client import HTTPSConnection
from pathlib import Path

from eulerlora_client import QuotaExceeded, RetryPolicy, TriageClient

PROGRAM = [sys.executable, "-m", "eulerlora_contract"]  # `eulerlora` in a shell
folder = Path("proxy").absolute()
folder.mkdir()
keys = folder / "keys.jsonl"
new_key = [*PROGRAM, "keys", "new", "clinic", "--file", keys, "--requests-per-minute", "5"]
key = subprocess.run(new_key, check=True, capture_output=True, text=True).stdout.strip()

# %% [markdown]
# **The configuration**, for `/etc/nginx/conf.d/eulerlora.conf`, which `nginx -s reload` reads.
# Change the name and the certificate. Nothing listens on port 80, because a redirect comes after
# the key was sent in clear text. Only `/metrics` is hidden: other routes need a key, or tell nobody
# anything (page, documentation, probes).

# %%
SERVER = """
upstream eulerlora {
    server 127.0.0.1:8000;
    keepalive 32;      # needed before nginx 1.29.7; idle for 60 s, the service waits 75 s
}
limit_req_zone $binary_remote_addr zone=addresses:10m rate=50r/s;
limit_conn_zone $binary_remote_addr zone=connections:10m;
limit_req_status 429;
limit_conn_status 429;
server {
    listen 443 ssl;
    server_name clinic.example;
    ssl_certificate     /etc/ssl/clinic.pem;
    ssl_certificate_key /etc/ssl/clinic.key;
    client_max_body_size 128m;            # BODIES__MAX_BATCH_BYTES
    client_header_timeout 10s;            # for the headers of a request
    client_body_timeout 10s;              # between two pieces of a body
    send_timeout 30s;                     # between two reads of the client
    limit_conn connections 32;            # requests of an address at the same time
    location / {
        limit_req zone=addresses burst=200 nodelay;      # with or without a key
        proxy_pass http://eulerlora;
        proxy_http_version 1.1;
        proxy_set_header Connection "";   # keep connections open
        proxy_set_header Host $http_host;
        proxy_set_header X-Forwarded-For $remote_addr;   # replaces what the client sent
        proxy_request_buffering on;       # nginx absorbs slow uploads
        proxy_read_timeout 75s;           # above DEADLINE_S + MAX_BATCH_S
    }
    location = /metrics { return 404; }   # Prometheus asks the service itself
}
"""

# %% [markdown]
# **To try it**, take free ports, the name `localhost` and a self-signed certificate. `nginx -t`
# checks the configuration.


# %%
def free_port() -> int:
    """Returns a port that no process uses."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


port, https_port = free_port(), free_port()
pem, private = folder / "clinic.pem", folder / "clinic.key"
request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
request += ["-addext", "subjectAltName=DNS:localhost", "-out", pem, "-keyout", private]
subprocess.run(["openssl", *request], check=True, capture_output=True)
server = SERVER.replace("listen 443", f"listen 127.0.0.1:{https_port}").replace("/etc/ssl/", "")
server = server.replace(":8000", f":{port}").replace("clinic.example", "localhost")
uploads = "".join(
    f"{kind}_temp_path {kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
)
(folder / "nginx.conf").write_text(  # paths are relative to the folder
    "user root;  # has no effect for other users\npid nginx.pid;\ndaemon off;\n"
    f"events {{}}\nhttp {{\naccess_log access.log;\n{uploads}\n{server}}}\n"
)
nginx = ["nginx", "-p", folder, "-e", folder / "error.log", "-c", folder / "nginx.conf"]
subprocess.run([*nginx, "-t"], check=True)

# %% [markdown]
# **Start both.** In a shell, with the names that clients use for the service:
#
#     EULERLORA_SERVE_TRUSTED_PROXIES=127.0.0.1 EULERLORA_SERVE_ALLOWED_HOSTS=clinic.example \
#         eulerlora serve --keys keys.jsonl
#
# `TRUSTED_PROXIES` names the proxies whose `X-Forwarded-For` is trusted, by default none. Without
# keys, the service tells clients apart by these addresses; else it would see only that of nginx.
# nginx limits the connections of an address, because the service sees those of nginx only.

# %%
settings = {
    "EULERLORA_SERVE_TRUSTED_PROXIES": "127.0.0.1",
    "EULERLORA_SERVE_ALLOWED_HOSTS": "localhost",
}
serve = [*PROGRAM, "serve", "--port", str(port), "--keys", keys]
for command in (serve, nginx):
    process = subprocess.Popen(command, env=os.environ | settings)
    atexit.register(process.wait)
    atexit.register(process.terminate)  # the last one registered is called first
with TriageClient(f"http://localhost:{port}", key, retry=RetryPolicy(service_s=300)) as client:
    client.models()  # once the service is ready

# %% [markdown]
# With Docker, this replaces `eulerlora serve`, where `keys.jsonl` is in the folder `secrets`. On
# the network of the host, the service listens on 127.0.0.1 only:
#
#     docker build -t eulerlora CHECKOUT
#     docker run --init --read-only --tmpfs /tmp --network host --user "$(id -u)" \
#         -v "$PWD/secrets:/etc/eulerlora:ro" -e EULERLORA_SERVE_TRUSTED_PROXIES=127.0.0.1 \
#         -e EULERLORA_SERVE_ALLOWED_HOSTS=clinic.example \
#         eulerlora eulerlora serve --keys /etc/eulerlora/keys.jsonl
#
# **Ask** until the quota is used up. By default the client waits as long as `Retry-After` says.

# %%
os.environ["SSL_CERT_FILE"] = str(pem)  # a certificate of a public authority needs no setting
lesion = Path(__file__).parents[1] / "docs" / "images" / "example-lesion.jpg"
url = f"https://localhost:{https_port}"
with TriageClient(url, key, retry=RetryPolicy(quota_s=0)) as client:
    print(client.predict(lesion).label)
    try:
        while True:
            client.predict(lesion)
    except QuotaExceeded as problem:
        print(f"quota exceeded, free again in {problem.retry_after_s:.0f} s")

# %% [markdown]
# **What others get.**

# %%
connection = HTTPSConnection("localhost", https_port, context=ssl.create_default_context())
for method, path, headers in (
    ("GET", "/readyz", {}),
    ("POST", "/predict", {}),  # without a key
    ("POST", "/predict", {"Authorization": "Bearer wrong"}),
    ("POST", "/predict/batch", {"Content-Length": str(129 * 2**20)}),
    ("GET", "/metrics", {}),
    ("GET", "/models", {"Host": "other.example"}),
):
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    response.read()
    print(method, path, *headers, response.status)
    connection.close()

# %% [markdown]
# It prints:
#
#     GET /readyz 200
#     POST /predict 401
#     POST /predict Authorization 401
#     POST /predict/batch Content-Length 413
#     GET /metrics 404
#     GET /models Host 421

# %% [markdown]
# Next: [API keys](../docs/how-to/keys.md) rotates keys, [the audit log](../clinic/docs/audit.md)
# records decisions, [run the service](../docs/how-to/serve.md) explains limits and fairness, and
# [install and deploy](../docs/how-to/deploy.md) has compose and Kubernetes.

"""The names, values and documentation of the settings."""

import re
import resource

import pytest
from click.testing import CliRunner

from eulerlora_contract.errors import SettingsError
from eulerlora_contract.program import program
from service.process import effective_settings
from service.settings import DecodingSettings, ServiceSettings


def test_variables_set_top_level_and_grouped_settings(monkeypatch) -> None:
    monkeypatch.setenv("EULERLORA_SERVE_DEADLINE_S", "2.5")
    monkeypatch.setenv("EULERLORA_SERVE_ALLOWED_HOSTS", "clinic.example")
    monkeypatch.setenv("EULERLORA_SERVE_BODIES__MAX_BYTES", "1000")
    settings = effective_settings()
    assert (settings.deadline_s, settings.allowed_hosts) == (2.5, "clinic.example")
    assert settings.bodies.max_bytes == 1000
    assert settings.bodies.max_files == ServiceSettings().bodies.max_files


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("PORT", "8001", "EULERLORA_SERVE_PORT: unknown setting"),
     ("DEADLINE", "5", "EULERLORA_SERVE_DEADLINE: unknown setting"),
     ("BODIES__MAX_BITES", "5", "unknown setting"), ("BODIES", "{}", "unknown setting"),
     ("DEADLINE_S", "soon", "deadline_s"), ("DEADLINE_S", "-1", "deadline_s"),
     ("ALLOWED_HOSTS", "https://clinic.example/", "allowed_hosts"),
     ("ALLOWED_HOSTS", "a.example,b:8443", "no port and no final dot, got 'b:8443'"),
     ("ALLOWED_HOSTS", "clinic.example.", "allowed_hosts"),
     ("TRUSTED_PROXIES", "nginx", "trusted_proxies: expected addresses or networks, got 'nginx'"),
     ("TRUSTED_PROXIES", "10.0.0.1/8", "trusted_proxies"),
     ("MAX_WAITING_ROWS", "0", "max_waiting_rows"), ("LIFE__DRAIN_S", "nan", "life.drain_s")],
)  # fmt: skip
def test_a_wrong_name_or_value_is_one_line_that_names_it(monkeypatch, name, value, reason) -> None:
    monkeypatch.setenv("EULERLORA_SERVE_" + name, value)
    with pytest.raises(SettingsError, match=re.escape(reason)) as caught:
        effective_settings()
    assert "\n" not in str(caught.value)


def test_the_printed_settings_are_a_file_of_variables_with_the_defaults(monkeypatch) -> None:
    printed = CliRunner().invoke(program, ["serve", "--settings"]).output
    variables = dict(re.findall(r"^# .+\n(EULERLORA_SERVE_\w+)=(.*)$", printed, re.MULTILINE))
    assert len(variables) == len(re.findall("^[^#]", printed, re.MULTILINE))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings, defaults = effective_settings(), ServiceSettings()
    assert settings.model_copy(update={"images": defaults.images}) == defaults
    assert settings.images.model_dump().items() >= defaults.images.model_dump().items()


@pytest.mark.parametrize("service", ["", "SVC_", "DEADLINE_"])
def test_variables_of_kubernetes_for_a_service_with_such_a_name_are_no_settings(
    monkeypatch, service
) -> None:
    """As for the services eulerlora-serve, eulerlora-serve-svc and eulerlora-serve-deadline."""
    links = {
        "SERVICE_HOST": "10.0.0.7", "SERVICE_PORT": "80", "SERVICE_PORT_HTTP": "80",
        "PORT": "tcp://10.0.0.7:80", "PORT_80_TCP": "tcp://10.0.0.7:80",
        "PORT_80_TCP_PROTO": "tcp", "PORT_80_TCP_PORT": "80", "PORT_80_TCP_ADDR": "10.0.0.7",
    }  # fmt: skip
    for name, value in links.items():
        monkeypatch.setenv("EULERLORA_SERVE_" + service + name, value)
    assert effective_settings() == ServiceSettings()


@pytest.mark.parametrize(
    ("contradiction", "reason"),
    [({"IMAGES__MIN_SIDE": 100, "IMAGES__MAX_SIDE": 99},
      "expected images.max_side of at least images.min_side=100, got 99"),
     ({"IMAGES__MIN_SIDE": 100, "IMAGES__MAX_PIXELS": 9_999},
      "expected images.max_pixels of at least the square of images.min_side=10000, got 9999"),
     ({"IMAGES__MAX_PIXELS": 600_000_000}, "images.max_request_pixels"),
     ({"IMAGES__MAX_JPEG_PIXELS": 600_000_000}, "images.max_request_pixels"),
     ({"DECODING__CPU_S": 2, "DECODING__CLIENT_S_PER_MINUTE": 1.5}, "decoding.cpu_s=2, got 1.5"),
     ({"CONNECTIONS__SPARE_FILES": 2**40}, "ulimit -n"),
     ({"BODIES__MAX_BYTES": 2_000_000_000}, "bodies.max_bytes_in_flight"),
     ({"BODIES__MAX_BATCH_BYTES": 2_000_000_000}, "bodies.max_bytes_in_flight"),
     ({"LIFE__GRACE_S": 30}, "life.grace_s"), ({"LIFE__DRAIN_S": 40}, "life.grace_s"),
     ({"DEADLINE_S": 60}, "deadline_s + 5=95, got 60"),
     ({"BODIES__UPLOAD_TIMEOUT_S": 60}, "bodies.upload_timeout_s")],
)  # fmt: skip
def test_settings_that_cannot_work_together_are_refused_in_one_line(
    monkeypatch, contradiction, reason
) -> None:
    for name, value in contradiction.items():
        monkeypatch.setenv(f"EULERLORA_SERVE_{name}", str(value))
    with pytest.raises(SettingsError, match=re.escape(reason)) as caught:
        effective_settings()
    assert "\n" not in str(caught.value)


def test_an_unlimited_number_of_open_files_does_not_limit_connections(monkeypatch) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    settings = effective_settings()
    assert settings.connections.connections_within_file_limit() > 10**9


@pytest.mark.parametrize(
    ("set_to", "cpus", "decoders"),
    [(0, 1, 2), (0, 5, 2), (0, 8, 4), (0, 128, 16), (3, 128, 3)],
)
def test_half_of_the_cpus_may_decode_unless_a_number_is_set(
    set_to: int, cpus: int, decoders: int, monkeypatch
) -> None:
    monkeypatch.setattr("service.settings.available_cpus", lambda: cpus)
    assert DecodingSettings(workers=set_to).decoders == decoders

"""Showing and checking policies."""

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from click.testing import CliRunner

from eulerlora_client.commands import program as command_line
from eulerlora_client.commands.policy import check_command, policy_command, show_command
from eulerlora_client.errors import SettingsError
from eulerlora_client.policy.policy import default_policy, default_policy_text


def test_show_prints_the_packaged_policy_to_the_letter() -> None:
    done = CliRunner().invoke(show_command)
    assert (done.exit_code, done.stdout) == (0, default_policy_text())


def test_what_show_prints_check_accepts_with_its_version_and_hash(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(CliRunner().invoke(show_command).stdout)
    done = CliRunner().invoke(check_command, [str(path)])
    policy = default_policy()
    assert done.exit_code == 0
    assert done.stdout == f"{path}: valid, version {policy.version}, {policy.hash}\n"


def test_check_refuses_what_is_no_policy(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(default_policy_text() + "\n[extra]\n")
    with pytest.raises(SettingsError, match=r"own\.toml: .*extra"):
        CliRunner().invoke(check_command, [str(path)], catch_exceptions=False)


def test_the_group_lists_the_entry_points_of_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "eulerlora.policy_commands"
    own = EntryPoint("show", "eulerlora_client.commands.policy:show_command", group)
    other = EntryPoint("serve", "service.commands:serve_command", "eulerlora.commands")
    found = EntryPoints((own, other))
    monkeypatch.setattr(command_line, "entry_points", found.select)
    done = CliRunner().invoke(policy_command, ["--help"])
    assert "show " in done.stdout
    assert "serve" not in done.stdout
    assert CliRunner().invoke(policy_command, ["show"]).stdout == default_policy_text()
    assert CliRunner().invoke(policy_command, ["serve"]).exit_code == 2

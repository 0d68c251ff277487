"""What a report of a fault needs."""

import platform
from importlib.metadata import version

from typer.testing import CliRunner

from leaveout.extensions.cli import app


def test_versions_machine_and_settings(monkeypatch):
    monkeypatch.setenv("LEAVEOUT_CACHE", "off")
    monkeypatch.setenv("HOME_OF_SOMEBODY", "secret")
    result = CliRunner().invoke(app, ["about"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == f"leaveout {version('leaveout')}"
    for name in ("jax", "numpy", "scikit-learn", "scipy"):  # of an extra, too
        assert lines.count(f"{name} {version(name)}") == 1
    assert f"python: {platform.python_version()}" in result.output
    assert f"machine: {platform.platform()}" in result.output
    assert "user_api: blas" in result.output
    assert "LEAVEOUT_CACHE=off" in lines and "secret" not in result.output

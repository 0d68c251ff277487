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
    for name in ("numpy", "scikit-learn", "scipy"):
        assert f"{name} {version(name)}" in lines
    names = [line.partition(" ")[0] for line in lines]
    assert len(set(names[: names.index("Python")])) == names.index("Python")
    assert "jax" in names and "pytest" not in names  # an extra's package, and a developer's
    assert any(line.startswith(f"Python {platform.python_version()} on ") for line in lines)
    assert any("openblas" in line or "mkl" in line for line in lines)
    assert "LEAVEOUT_CACHE=off" in lines and "secret" not in result.output

"""The files that docs/operating.md gives out: read by systemd and by the real parser."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from outrider.cli.main import app
from outrider.cli.settings import values_for
from outrider.cloud_server.metrics import PREFIX

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_configuration_file_is_understood() -> None:
    root = typer.main.get_command(app)
    serve = root.commands["cloud"].commands["serve"]
    values = values_for(DOCS / "cloud.toml", serve, ("cloud", "serve"), root=root)
    assert values["host"] == "0.0.0.0"
    assert values["max_queue"] == 24
    assert values["metrics_port"] == 9471
    assert {"api_key_file", "ssl_certfile", "ssl_keyfile", "idle_seconds"} <= values.keys()


def test_the_unit_names_what_exists() -> None:
    text = (DOCS / "outrider-cloud.service").read_text("utf-8")
    lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and line[0] != "#")
    assert lines["ExecStart"].split()[1:3] == ["cloud", "serve"]
    assert "HUP" in lines["ExecReload"]
    assert float(lines["TimeoutStopSec"]) > 30.0  # --drain-seconds by default


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    command = shutil.which("systemd-analyze")
    if command is None:
        pytest.skip("systemd is not here")
    text = (DOCS / "outrider-cloud.service").read_text("utf-8")
    unit = tmp_path / "outrider-cloud.service"
    # The program and the user of the unit are not on this machine.
    text = text.replace("/opt/outrider/bin/outrider", sys.executable)
    unit.write_text(text.replace("=outrider\n", "=root\n"), "utf-8")
    done = subprocess.run([command, "verify", unit], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    if not said and done.returncode:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr[:200]}")
    assert said == []


def test_every_metric_of_the_page_is_served(start_cloud) -> None:
    import re
    import urllib.request

    pytest.importorskip("llama_cpp")
    cloud = start_cloud("--target-backend", "llama")
    base = cloud.url.replace("ws:", "http:").removesuffix("/v1/stream")
    with urllib.request.urlopen(f"{base}/metrics", timeout=10) as answer:
        served = answer.read().decode()
    page = (DOCS / "operating.md").read_text("utf-8")
    table = page[page.index("| metric") : page.index("Rates are for")]
    names = re.findall(r"`([a-z_]+)`", table)
    assert len(names) > 15
    for name in names:
        if name != PREFIX:
            assert re.search(rf"^# TYPE {PREFIX}{name} ", served, re.M), name

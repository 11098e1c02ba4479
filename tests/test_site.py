"""The documentation as a site: every link leads somewhere, and the reference is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="needs the extra: docs")
pytest.importorskip("mkdocstrings", reason="needs the extra: docs")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as ``make docs`` does: a warning is a failure."""
    place = tmp_path_factory.mktemp("site")
    made = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(place)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return place


def test_the_reference_is_that_of_the_code(site: Path) -> None:
    commands = (site / "reference" / "commands.html").read_text("utf-8")
    words = (
        "outrider cloud serve",
        "--draft-model",
        "Talk with the target",
        "outrider bench links",
    )
    for named in words:
        assert named in commands, named
    api = (site / "reference" / "api.html").read_text("utf-8")
    assert 'id="outrider.edge_client.api.AsyncOutrider.stream"' in api
    interfaces = (site / "reference" / "interfaces.html").read_text("utf-8")
    for name in ("policy.Policy", "targets.base.Target", "lm.base.CausalLM"):
        assert re.search(rf'id="outrider\.[\w.]*{re.escape(name)}"', interfaces), name


def test_the_picture_is_on_the_page_that_explains_it(site: Path) -> None:
    page = (site / "architecture.html").read_text("utf-8")
    assert 'src="pictures/stream.svg"' in page
    assert (site / "pictures" / "stream.svg").exists()


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        found = re.findall(
            r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="(\w+:[^"]*)', text
        )
        assert found == [], page.name

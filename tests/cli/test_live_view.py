"""The live view in a real browser, over a real link that is made bad under it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import browser

pytestmark = [
    pytest.mark.skipif(browser.installed() is None, reason="no Chromium on this machine"),
    pytest.mark.llama,
]
PICTURES = os.environ.get("OUTRIDER_TEST_PICTURES")
"""A folder for the pictures, for people who want to look."""

SIZES = {"phone": (360, 740), "desktop": (1280, 900)}


@pytest.fixture(scope="module")
def page(popen):
    """The address of the demonstration's page."""
    pytest.importorskip("llama_cpp")
    process = popen(
        "demo", "--live", "--port", "0", "--policy", "fixed", "--target-backend", "llama"
    )
    for line in process.stderr:
        if line.startswith(b"live view: "):
            return line.decode().split()[-1]
    raise AssertionError("the demonstration did not start")


def shoot(view: browser.Browser, name: str) -> None:
    if PICTURES:
        view.picture(Path(PICTURES) / f"{name}.png")


@pytest.mark.parametrize(
    ("size", "dark"),
    [
        ("phone", True),
        ("desktop", False),
        pytest.param("phone", False, marks=pytest.mark.slow),
        pytest.param("desktop", True, marks=pytest.mark.slow),
    ],
)
def test_an_answer_as_it_comes(page, size, dark) -> None:
    with browser.Browser(*SIZES[size], dark=dark) as view:
        view.open(page)
        view.until("document.getElementById('link').options.length > 3")
        assert view.run("document.getElementById('plain').checked")
        shoot(view, f"{size}-{'dark' if dark else 'light'}-before")
        view.run("document.getElementById('prompt').focus()")
        view.press("Enter", ctrl=True)
        view.until("document.querySelector('#text .accepted') !== null")
        view.until("document.querySelector('#text .ahead') !== null")
        view.until("document.querySelector('#text .refused') !== null")
        view.until("figures.tokens > 60")
        assert view.run("document.getElementById('mode').textContent") == "Drafting"
        shoot(view, f"{size}-{'dark' if dark else 'light'}-under-way")
        view.until("document.getElementById('summary').textContent.includes('tokens')")
        assert view.run("document.getElementById('error').hidden")
        assert view.run("document.querySelector('#text .ahead') === null")
        known = "[...series.values()].filter(chart => chart.values.length > 1).length"
        assert view.run(known) >= 6
        assert view.run("series.get('passes').values.length") == 1
        # Nothing is wider than the screen, and everything came from here.
        assert view.run("document.documentElement.scrollWidth <= innerWidth")
        assert {url.split("/")[2] for url in view.urls if url.startswith("http")} == {
            page.split("/")[2]
        }
        assert view.errors == []
        shoot(view, f"{size}-{'dark' if dark else 'light'}-after")


def test_the_text_shown_is_the_text(page) -> None:
    """What is on the screen without the refused guesses is what a plain request gives."""
    with browser.Browser(800, 800) as view:
        view.open(page)
        view.until("document.getElementById('plain').checked")
        view.run("send()")
        view.until("document.getElementById('summary').textContent.includes('tokens')", 40)
        shown = view.run(
            "[...document.querySelectorAll('#text span')].map(s => s.textContent).join('')"
        )
        plain = view.run(
            "fetch('v1/completions', {method: 'POST', body: JSON.stringify({temperature: 0,"
            "max_tokens: 160, prompt: document.getElementById('prompt').value})})"
            ".then(r => r.json()).then(r => r.choices[0].text)"
        )
        assert shown == plain


def test_the_link_changes_under_it(page) -> None:
    with browser.Browser(800, 800) as view:
        view.open(page)
        view.until("document.getElementById('link').options.length > 3")
        view.run("document.getElementById('tokens').value = 8")
        first = "document.getElementById('summary').textContent.match(/first after (\\d+) ms/)[1]"

        def to_first_token(link: str) -> int:
            view.run(f"document.getElementById('link').value = '{link}'; setLink()")
            view.until(f"document.getElementById('note').dataset.link === '{link}'")
            view.run("send()")
            view.until("!running", 60)
            assert view.run("document.getElementById('error').hidden")
            return int(view.run(first))

        near = to_first_token("loopback")
        assert to_first_token("geo") > near + 300
        to_first_token("loopback")
        assert view.run("document.getElementById('reason').textContent")


def test_keys_and_mistakes(page) -> None:
    with browser.Browser(800, 800) as view:
        view.open(page)
        view.until("document.getElementById('plain').checked")
        view.run("document.getElementById('tokens').value = 1500")
        view.press("Enter", ctrl=True)
        view.until("figures && figures.tokens > 5")
        assert view.run("document.getElementById('send').disabled")
        view.press("Escape")
        view.until("!running")
        assert view.run("document.getElementById('summary').textContent") == "Stopped."
        view.run("document.getElementById('prompt').value = 'word '.repeat(9000); send()")
        view.until("!document.getElementById('error').hidden")
        assert "fit in the context" in view.run("document.getElementById('error').textContent")
        # Everything can be reached with the keyboard, and nothing else is announced as a button.
        names = set()
        view.run("document.activeElement.blur()")
        for _ in range(12):
            view.press("Tab")
            names.add(view.run("document.activeElement.id"))
        assert {"prompt", "tokens", "temperature", "objective", "draft", "link", "send"} <= names


REFUSED_LATE = """
const real = window.fetch;
window.fetch = async (...what) => {
  const response = await real(...what);
  if (response.status === 401) {
    const read = response.json.bind(response);
    response.json = async () => {
      await new Promise(go => setTimeout(go, 400));
      late = true;
      return read();
    };
  }
  return response;
};
var late = false;
"""
"""The reason of a refusal comes after the answer to what was asked for next."""


@pytest.mark.parametrize("order", ["", REFUSED_LATE], ids=["in turn", "refused late"])
def test_a_key_is_asked_for(start_endpoint_with_key, order) -> None:
    url, key = start_endpoint_with_key
    with browser.Browser(800, 800) as view:
        view.call("Page.addScriptToEvaluateOnNewDocument", source=order)
        view.open(url)
        view.until("!document.getElementById('key-row').hidden")
        view.run(f"document.getElementById('key').value = {json.dumps(key)}")
        view.run("document.getElementById('use-key').click()")
        if order:
            view.until("late")
        view.until("document.getElementById('about').textContent.includes('embedded')")
        assert view.run("document.getElementById('link-row').hidden")
        view.run("document.getElementById('tokens').value = 8; send()")
        view.until("document.getElementById('summary').textContent.includes('8 tokens')")


@pytest.fixture
def start_endpoint_with_key(popen, llama_cloud):
    key = "a-key-for-apps-0123456789"
    process = popen("serve", "--cloud", llama_cloud.url, "--port", "0", "--json", "--api-key", key)
    line = process.stdout.readline()
    assert line, process.stderr.read().decode()
    return json.loads(line)["page"], key

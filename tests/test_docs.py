"""The documentation is checked like code: links, modules, commands, tables and the example."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from outrider.protocol import cloud as cloud_machine
from outrider.protocol import edge as edge_machine
from outrider.protocol.epochs import EdgeWindow
from outrider.protocol.guesses import judge
from outrider.protocol.messages import Verdict
from outrider.protocol.session import CloudSession

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("models/*.md")],
    key=lambda page: page.relative_to(ROOT).as_posix(),
)
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PACKAGES = ("protocol", "runtime", "edge_client", "cloud_server", "simulator", "cli", "benchmarks")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_of(page: Path) -> str:
    return page.read_text("utf-8")


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """(language, text) of every code block, fenced or indented."""
    text = text_of(page)
    for language, body in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S):
        yield language, body
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    for body in re.findall(r"(?:^ {4}.*\n)+", text, re.M):
        yield "", "\n".join(line[4:] for line in body.splitlines())


def section(page: Path, heading: str) -> str:
    """What stands under a heading, up to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text_of(page), re.M | re.S)
    assert found, f"{name_of(page)} has no heading {heading!r}"
    return found.group(1)


def table(page: Path, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, its head left out."""
    lines = re.findall(r"^\|(.*)\|$", section(page, heading), re.M)
    return [[cell.strip() for cell in line.split("|")] for line in lines[2:]]


# --- links ------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """What can stand behind the # of a link to this page."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.M)
    return {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_resolve(page: Path) -> None:
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        inside = target.is_relative_to(ROOT)
        known = not anchor or (target.suffix == ".md" and anchor in anchors(target))
        if not (inside and target.exists() and known):
            wrong.append(link)
    assert wrong == []


def test_every_page_is_in_the_index() -> None:
    index = text_of(ROOT / "docs" / "index.md")
    pages = [path for path in tracked() if path.parent == ROOT / "docs" and path.suffix == ".md"]
    missing = [page.name for page in pages if f"]({page.name})" not in index]
    assert [name for name in missing if name != "index.md"] == []


# --- modules ----------------------------------------------------------------------------------


def modules() -> set[str]:
    names = [name_of(file) for file in tracked() if file.suffix == ".py"]
    return {
        name
        for name in names
        if name.split("/")[0] in PACKAGES and not name.endswith("__init__.py")
    }


def listed() -> list[str]:
    return re.findall(r"^- `([\w/]+\.py)`: ", section_of_modules(), re.M)


def section_of_modules() -> str:
    text = text_of(ARCHITECTURE)
    start = text.index("## What each module does")
    return text[start : text.index("\n## ", start)]


def test_every_module_has_its_line() -> None:
    assert sorted(modules() - set(listed())) == []


def test_no_line_is_about_a_module_that_is_gone() -> None:
    assert [name for name in listed() if not (ROOT / name).is_file()] == []
    assert len(listed()) == len(set(listed()))


def test_the_readme_has_a_line_for_every_folder() -> None:
    tree = next(body for _, body in blocks(ROOT / "README.md") if "protocol/  " in body)
    named, parent = set(), ""
    for line in tree.splitlines():
        folder = re.match(r"( *)([\w]+)/", line)
        assert folder, line
        if not folder[1]:
            parent = folder[2]
        named.add(f"{parent}/{folder[2]}" if folder[1] else parent)
    assert sorted(name for name in named if not (ROOT / name).is_dir()) == []
    packages = {
        name_of(init.parent) for top in PACKAGES for init in ROOT.glob(f"{top}/**/__init__.py")
    }
    assert sorted(packages - named) == []


# --- commands ---------------------------------------------------------------------------------


def commands(page: Path) -> Iterator[list[str]]:
    """Every ``outrider`` command line of a page, in a block or in the text, as arguments."""
    lines = [body.replace("\\\n", " ") for language, body in blocks(page) if language != "python"]
    found = [line for body in lines for line in body.splitlines() if line.startswith("outrider ")]
    prose = re.sub(r"^```.*?^```|^ {4}.*$", "", text_of(page), flags=re.M | re.S)
    found += re.findall(r"`(outrider [^`]+)`", prose)
    for line in found:
        words = shlex.split(line.split(" | ")[0], comments=True)[1:]
        yield [word for word in words if word != "..."]


def parse(arguments: list[str]) -> None:
    """Read a command line with the real parser; nothing is run."""
    from outrider.cli.main import app

    command: Any = typer.main.get_command(app)
    context: Any = None
    name: str | None = "outrider"
    try:
        while True:
            context = command.make_context(name, arguments, parent=context)
            command = context.command  # `bench` is another one once it is used
            if not hasattr(command, "resolve_command"):
                return
            arguments = [*getattr(context, "_protected_args", ()), *context.args]
            if not arguments:
                return  # a group by itself, as in "the commands under `outrider bench`"
            name, command, arguments = command.resolve_command(context, arguments)
    except typer.Exit:
        return  # --help


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_are_real(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("OUTRIDER_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("OUTRIDER_CONFIG", os.devnull)
    wrong = {}
    for arguments in commands(page):
        try:
            parse(list(arguments))
        except Exception as error:
            wrong[shlex.join(arguments)] = getattr(error, "message", str(error))
    assert wrong == {}


def test_the_readme_shows_commands() -> None:
    verbs = {" ".join(arguments[:2]) for arguments in commands(ROOT / "README.md")}
    assert {"cloud serve", "bench quick", "demo --json"} <= verbs


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_targets_exist(page: Path) -> None:
    phony = re.search(r"^\.PHONY: (.*)$", text_of(ROOT / "Makefile"), re.M)
    assert phony
    code = [*(body for _, body in blocks(page)), *re.findall(r"`([^`\n]+)`", text_of(page))]
    used = {
        word
        for line in "\n".join(code).splitlines()
        if line.startswith("make ")
        for word in line.partition("#")[0].split()[1:]
        if re.fullmatch(r"[a-z-]+", word)
    }
    assert used - set(phony[1].split()) == set()


def test_the_extras_are_those_of_the_build() -> None:
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    shown = {row[0].strip("`") for row in table(ROOT / "README.md", "What to install")}
    assert shown == set(project["optional-dependencies"])


# --- Python in the pages ----------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_examples_name_what_exists(page: Path) -> None:
    for language, body in blocks(page):
        if language != "python":
            continue
        for node in ast.walk(ast.parse(body)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("outrider."):
                spec = importlib.util.find_spec(node.module or "")
                assert spec, node.module
                assert spec.origin, node.module
                source = Path(spec.origin).read_text("utf-8")
                for alias in node.names:
                    assert re.search(rf"^(def|class) {alias.name}\b", source, re.M), alias.name


# --- tables of states -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heading", "transitions"),
    [
        ("The edge's link", edge_machine.TRANSITIONS),
        ("A connection at the cloud", cloud_machine.TRANSITIONS),
    ],
)
def test_state_tables_are_those_of_the_code(heading: str, transitions: dict[Any, Any]) -> None:
    shown = {tuple(row) for row in table(ARCHITECTURE, heading)}
    assert shown == {(a.value, event, b.value) for (a, event), b in transitions.items()}


# --- the worked example -----------------------------------------------------------------------

WORDS = ["The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", ".", "¶", "a"]
TARGET = list(range(11))
"""What the target says: the words in this order; 11 is the wrong guess."""


class Example:
    """Both windows of one session, and a target that knows its text."""

    def __init__(self) -> None:
        self.cloud = CloudSession(bytes(8), bytes(16), "")
        self.cloud.link = self
        self.cloud.ids.extend(TARGET[:3])
        self.cloud.told = 3
        self.edge = EdgeWindow(TARGET[:3])
        self.passes = 0

    def send(self, guesses: str) -> tuple[int, int]:
        """The edge sends guesses; (epoch, base)."""
        tokens, current = [WORDS.index(word) for word in guesses.split()], self.edge.current
        for token in tokens:
            current.append(token)
        if not self.edge.announced:
            self.cloud.window.begin(current.number, current.base)
        self.edge.announced, self.edge.sent = True, len(current.tokens)
        self.cloud.window.append(current.number, tokens, ())
        return current.number, current.base

    def decide(self, chain: list[int]) -> int:
        """A pass is over; the committed length."""
        length = len(self.cloud.ids)
        self.cloud.commit(judge(chain, TARGET[length : length + len(chain) + 1]))
        self.passes += 1
        return len(self.cloud.ids)

    def pending(self) -> str:
        return " ".join(WORDS[i] for i in self.cloud.window.chain(9))

    def tell(self) -> tuple[int, int, int | None, str]:
        """The verdict: position, epoch, node, further words. The edge takes it."""
        verdict = self.cloud.news(0.0, 0.0)
        assert isinstance(verdict, Verdict)
        own = []
        if verdict.node is not None:
            own = self.edge.resolve(verdict.epoch, verdict.node, len(self.edge.committed))
        self.edge.commit([*own, *verdict.ids])
        words = " ".join(WORDS[i] for i in verdict.ids)
        return verdict.at, verdict.epoch, verdict.node, words


def test_the_worked_example() -> None:
    example = Example()
    assert example.send("fox jumps over a") == (1, 3)
    assert example.decide([]) == 4
    assert example.tell() == (3, 1, 0, "")
    assert example.edge.current.number == 1
    assert example.pending() == "jumps over a"
    assert example.decide(example.cloud.window.chain(9)) == 7
    assert example.tell() == (4, 1, 2, "the")
    assert example.send("lazy dog .") == (2, 7)
    assert example.pending() == "lazy dog ."
    assert example.decide(example.cloud.window.chain(9)) == 11
    assert example.tell() == (7, 2, 2, "¶")
    assert example.edge.committed == example.cloud.ids == TARGET
    assert example.passes == 3


# --- words ------------------------------------------------------------------------------------


def defined() -> list[str]:
    words = re.findall(r"\*\*([^*]+)\*\*", text_of(ROOT / "docs" / "glossary.md"))
    return [word.lower() for word in words]


def test_every_word_is_defined_once() -> None:
    needed = {
        "target model", "draft model", "gamma", "alpha", "accepted", "recovered", "bonus",
        "mean acceptance length", "committed", "frontier", "epoch", "node", "alive", "base",
        "in flight", "riding", "rollback", "srtt", "rttvar", "min rtt", "goodput", "service time",
        "draft pack", "identical", "exact",
    }  # fmt: skip
    words = defined()
    assert needed - set(words) == set()
    assert sorted({word for word in words if words.count(word) > 1}) == []


# --- what no text of ours says ----------------------------------------------------------------

TEXTS = {".md", ".py", ".sh", ".toml", ".txt", ".json", ".svg", ".in", ".yml", ".yaml", ""}
MACHINE_PATH = re.compile(r"(?<![\w.:/~$}-])/(?:home|root|Users|work|mnt|srv|private|data)/\w")
HYPE = re.compile(
    r"\b(blazing|lightning[- ]fast|seamless\w*|cutting[- ]edge|state[- ]of[- ]the[- ]art|"
    r"revolution\w+|game[- ]chang\w+|world[- ]class|effortless\w*|supercharg\w+|unleash\w*|"
    r"next[- ]gen\w*|best[- ]in[- ]class|turbocharg\w+)\b",
    re.IGNORECASE,
)


def tracked() -> list[Path]:
    """The files of the repository; of a source archive, those of its own folders."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode == 0:
        names = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        tops = (*PACKAGES, "docs", "models", "scripts", "tests")
        names = [*ROOT.glob("*"), *(file for top in tops for file in (ROOT / top).rglob("*"))]
    return [
        path
        for path in names
        if path.is_file()
        and not path.is_symlink()
        and path.suffix in TEXTS
        and path.name != "tokenizer.json"
        and path != Path(__file__).resolve()
    ]


@pytest.mark.parametrize("pattern", [MACHINE_PATH, HYPE], ids=["paths", "hype"])
def test_no_machine_paths_and_no_hype(pattern: re.Pattern[str]) -> None:
    found = {}
    for path in tracked():
        hits = pattern.findall(path.read_text("utf-8", errors="replace"))
        if hits:
            found[name_of(path)] = hits[:3]
    assert found == {}

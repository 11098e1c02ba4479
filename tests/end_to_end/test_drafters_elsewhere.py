"""Groups whose members are real processes: killed, stopped and back; the text is the target's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest

from outrider.edge_client.group import remote
from outrider.edge_client.group.group import Group, GroupSettings
from outrider.edge_client.group.members import Member, Table
from outrider.edge_client.group.remote import Lan, RemoteMember, RemoteSettings
from outrider.edge_client.policy import Plan, Steady
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import HandshakeError
from outrider.runtime.lm.drafter import Guess, Standing
from outrider.runtime.net.tls import client_context
from outrider.runtime.text.fingerprint import describe
from outrider.runtime.text.tokenizer import load_tokenizer

MODELS = Path(str(files("outrider.models")))
STREAM = Steady(Plan(2, 8))


class EagerGroup(Group):
    """Trees at any price."""

    def draft(self, *arguments, standing=None, **settings) -> Guess:
        standing = replace(standing or Standing(), price=0.0, load=0.0)
        return super().draft(*arguments, standing=standing, **settings)


@contextmanager
def drafter(*more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``outrider drafter serve``, and its address."""
    command = [sys.executable, "-m", "outrider.cli.main", "drafter", "serve", "--json"]
    process = subprocess.Popen(
        [*command, "--with-stdin", "--port", "0", *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        yield process, json.loads(line)["url"]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.communicate()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def port_of(url: str) -> str:
    return url.rpartition(":")[2].partition("/")[0]


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_members_are_killed_and_stopped_and_come_back(served, temperature, monkeypatch) -> None:
    monkeypatch.setattr(remote, "BACK_OFF_MAX", 0.5)
    sampling = Sampling(temperature=temperature, seed=2)
    expected = served.plain(sampling)
    size, fingerprint = served.tokenizer.size, describe(served.tokenizer).fingerprint()
    with ExitStack() as stack:
        one, its_url = stack.enter_context(drafter("--max-sessions", "2"))
        other, url = stack.enter_context(drafter("--drafter-backend", "onnx"))
        lan = Lan()
        away = [
            RemoteMember(RemoteSettings(url=u, fingerprint=fingerprint, usable=size), lan)
            for u in (its_url, url)
        ]
        here = Member("here", served.drafter("wrong once", expected))
        group = EagerGroup(
            Table([here, *away]), served.tokenizer.eos, GroupSettings(fixed=True, width=2)
        )
        stack.callback(group.close)
        for member in away:
            member.wait(30)
            assert member.there, member.trouble

        def answer() -> None:
            found = served.answer(group, STREAM, sampling, objective="cost")
            assert list(found.ids) == expected
            assert found.degraded is None

        answer()
        one.kill()  # -9
        one.wait()
        until(lambda: not away[0].there)
        answer()
        other.send_signal(signal.SIGSTOP)
        answer()
        other.send_signal(signal.SIGCONT)
        stack.enter_context(drafter("--max-sessions", "2", "--port", port_of(its_url)))
        until(lambda: group.steps.ready() == [0, 1, 2])
        answer()


def test_keys_certificates_and_other_vocabularies(tmp_path) -> None:
    """By process, over TLS: a wrong key, the right one, and a lead of another model."""
    subprocess.run(
        [sys.executable, "-m", "outrider.cli.main", "cloud", "cert", "--name", "127.0.0.1"],
        cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    keys = tmp_path / "keys.txt"
    keys.write_text("pi:" + "k" * 40 + "\n")
    keys.chmod(0o600)
    tokenizer = load_tokenizer(MODELS / "target")
    right = describe(tokenizer).fingerprint()
    options = ["--api-key-file", str(keys), "--ssl-certfile", str(certificate)]
    with drafter(*options, "--ssl-keyfile", str(key)) as (_, url):
        assert url.startswith("wss://")
        context = client_context(None, certificate)

        def meet(shown: str, fingerprint) -> RemoteMember:
            settings = RemoteSettings(
                url=url, key=shown, context=context, fingerprint=fingerprint, usable=tokenizer.size
            )
            return RemoteMember(settings, Lan())

        other = msgspec.structs.replace(right, ordinary=b"0" * 16)
        for shown, fingerprint, said in (("wrong", right, "key"), ("k" * 40, other, "tokenizer")):
            member = meet(shown, fingerprint)
            with pytest.raises(HandshakeError, match=said):
                member.wait(30)
            member.close()
        member = meet("k" * 40, right)
        member.wait(30)
        assert member.there
        assert member.propose([5, 6, 7], 1, Sampling(), 1, frozenset())
        member.close()

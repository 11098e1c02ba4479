"""From nothing to an edge that is let in: certificate, invitation, quotas, withdrawal."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import urllib.request
from pathlib import Path

import pytest
from cryptography import x509

from outrider.cli import exits
from outrider.protocol.errors import SettingError
from outrider.runtime.net.client import connect
from outrider.runtime.net.errors import LinkClosedError
from outrider.runtime.net.invite import Invite, read_invite
from outrider.runtime.net.tls import certificate_fingerprint, client_context

PROMPT = "And it came to pass"
URL = "wss://cloud.example:8471"
KEY = "k" * 43


def test_an_invitation_is_read_as_it_was_written() -> None:
    for invite in (Invite(URL, KEY), Invite(URL, KEY, "AB" * 32), Invite("ws://[::1]:1", KEY)):
        again = read_invite(f" {invite}\n")
        assert (again.url, again.key) == (invite.url, invite.key)
        assert (again.fingerprint or "").upper() == (invite.fingerprint or "")
        assert not set(str(invite)) & set(" '\"\\$`&;|<>()*?!#~{}")
        assert KEY not in repr(invite)


@pytest.mark.parametrize(
    "line",
    [f"{URL},", f"{URL},sha256={'ab' * 32}", f"{URL},key=", f"{URL},key={KEY},key={KEY}",
     f"{URL},key={KEY},sha256=zz", f"nowhere,key={KEY}", f"{URL},key={KEY},colour=red"],
)  # fmt: skip
def test_what_is_no_invitation(line: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_invite(line)
    assert KEY not in str(caught.value)


def test_a_certificate(invoke, tmp_path: Path) -> None:
    files = ["--ssl-certfile", tmp_path / "c.pem", "--ssl-keyfile", tmp_path / "k.pem"]
    names = ["--name", "cloud.local", "--name", "192.168.1.7", "--name", "::1"]
    made = invoke("cloud", "cert", *files, *names, "--days", "30", "--json").json
    assert made["fingerprint"] == certificate_fingerprint(tmp_path / "c.pem")
    assert (tmp_path / "k.pem").stat().st_mode & 0o777 == 0o600
    found = x509.load_pem_x509_certificate((tmp_path / "c.pem").read_bytes())
    assert 29 <= (found.not_valid_after_utc - found.not_valid_before_utc).days <= 31
    alt = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert alt.get_values_for_type(x509.DNSName) == ["cloud.local"]
    assert [str(a) for a in alt.get_values_for_type(x509.IPAddress)] == ["192.168.1.7", "::1"]
    again = invoke("cloud", "cert", *files)
    assert again.status == exits.USAGE
    assert "--force" in again.err
    by_itself = invoke("cloud", "cert", *files, "--force")
    assert by_itself.status == exits.DONE
    assert "localhost" in by_itself.out
    assert made["fingerprint"] not in by_itself.out
    bad = invoke("cloud", "cert", *files, "--force", "--name", "not a name")
    assert bad.status == exits.USAGE


def test_keys_are_listed_and_withdrawn_without_being_shown(invoke, tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    more = ["--url", URL, "--api-key-file", file]
    quota = ["--sessions", "2", "--draft-max", "4", "--objective", "cost",
             "--tokens-per-minute", "900", "--days", "3"]  # fmt: skip
    line = invoke("cloud", "invite", "pi", *more, *quota).out
    assert line.count("\n") == 1
    key = read_invite(line).key
    invoke("cloud", "invite", "hut", *more)
    assert key not in file.read_text()
    listed = invoke("cloud", "keys", "--api-key-file", file, "--json")
    pi, hut = listed.json["keys"]
    assert (pi["name"], pi["sessions"], pi["draft"], pi["objective"]) == ("pi", 2, 4, "cost")
    assert (pi["tokens_per_minute"], pi["expired"], hut["expires"]) == (900, False, None)
    assert key not in listed.out
    plain = invoke("cloud", "keys", "--api-key-file", file).out
    assert "pi (" in plain
    assert "tokens-per-minute=900" in plain  # as the key file spells it
    assert invoke("cloud", "revoke", "nobody", "--api-key-file", file).status == exits.USAGE
    assert invoke("cloud", "revoke", "pi", "--api-key-file", file).out.startswith("1 withdrawn")
    (left,) = invoke("cloud", "keys", "--api-key-file", file, "--json").json["keys"]
    assert left["name"] == "hut"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["two words", "--url", URL], "a name is"),
        (["pi", "--url", "ws://cloud.example:1"], "not encrypted"),
        (["pi", "--url", "ws://127.0.0.1:1", "--ssl-certfile", "c.pem"], "wss://"),
        (["pi", "--url", URL, "--ssl-certfile", "none.pem"], "No such file"),
    ],
)
def test_invitations_that_could_not_work(
    invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    invoke("cloud", "cert", "--ssl-certfile", "c.pem", "--ssl-keyfile", "k.pem")
    result = invoke("cloud", "invite", *args)
    assert (result.status, result.out) == (exits.USAGE, "")
    assert says in result.err
    assert not (tmp_path / "keys.txt").exists()


def test_an_invitation_leaves_no_room_for_other_keys(invoke) -> None:
    result = invoke("run", PROMPT, "--cloud", str(Invite(URL, KEY)), "--tls-fingerprint", "ab" * 32)
    assert result.status == exits.USAGE
    assert "leave --api-key" in result.err
    assert KEY not in result.err


@pytest.fixture(scope="module")
def guarded(start_cloud, process, tmp_path_factory: pytest.TempPathFactory):
    """A cloud with TLS and two keys; gives it, the lines of both, and the key file."""
    pytest.importorskip("llama_cpp")
    folder = tmp_path_factory.mktemp("guarded")
    cert, key, keys = folder / "cert.pem", folder / "key.pem", folder / "keys.txt"
    ends = ["--ssl-certfile", str(cert), "--ssl-keyfile", str(key)]
    assert process("cloud", "cert", *ends, "--name", "127.0.0.1").status == exits.DONE
    invite = [
        "--url",
        "wss://127.0.0.1:1",
        "--api-key-file",
        str(keys),
        "--ssl-certfile",
        str(cert),
    ]
    lines = [process("cloud", "invite", name, *invite).out for name in ("pi", "hut")]
    cloud = start_cloud("--target-backend", "llama", "--api-key-file", str(keys), *ends)
    base = cloud.url.removesuffix("/v1/stream")
    return cloud, [line.strip().replace("wss://127.0.0.1:1", base) for line in lines], keys


def test_an_edge_comes_in_with_one_line(guarded, invoke) -> None:
    cloud, (line, _), keys = guarded
    result = invoke("run", PROMPT, "--cloud", line, "-n", "8", "--draft", "off", "--json")
    assert result.json["tokens"] == 8
    status = invoke("cloud", "status", "--cloud", line, "--json").json
    assert (status["state"], status["tokens"]) == ("ok", 8)
    assert "tokens a second" in invoke("cloud", "status", "--cloud", line).out
    doctor = invoke("doctor", "--cloud", line, "--json")
    assert "answers" in doctor.out
    key = read_invite(line).key
    for said in (keys.read_text(), "".join(cloud.errors), doctor.out):
        assert key not in said


def test_status_without_a_key_or_a_cloud(guarded, invoke) -> None:
    _, (line, _), _ = guarded
    invite = read_invite(line)
    wrong = str(Invite(invite.url, KEY, invite.fingerprint))
    result = invoke("cloud", "status", "--cloud", wrong, "--json")
    assert (result.status, result.out) == (exits.UNREACHABLE, "")
    assert "refused the key" in result.err
    result = invoke("cloud", "status", "--cloud", "ws://127.0.0.1:9", "--json")
    assert result.status == exits.UNREACHABLE
    assert "nothing listens" in result.err


def test_a_withdrawn_key_loses_its_link_at_once(guarded, invoke) -> None:
    cloud, (line, other), keys = guarded
    pi, hut = read_invite(line), read_invite(other)
    before = keys.read_text()

    async def main() -> None:
        trust = client_context(pi.fingerprint)
        gone = await connect(pi.url, key=pi.key, context=trust)
        stays = await connect(hut.url, key=hut.key, context=trust)
        args = ["--api-key-file", keys, "--pid", str(cloud.process.pid)]
        result = await asyncio.to_thread(invoke, "cloud", "revoke", "pi", *args)
        assert "told" in result.out
        async with asyncio.timeout(5):
            with pytest.raises(LinkClosedError):
                await gone.recv()
        await stays.ping()
        await stays.close()

    asyncio.run(main())
    result = invoke("run", PROMPT, "--cloud", line, "-n", "4", "--draft", "off")
    assert result.status == exits.UNREACHABLE
    assert "this key is not valid" in result.err
    keys.write_text("not a key file: three words")
    cloud.process.send_signal(signal.SIGHUP)
    wait_for(cloud, "the keys stay as they were")
    assert invoke("run", PROMPT, "--cloud", other, "-n", "4", "--draft", "off").status == exits.DONE
    keys.write_text(before)
    cloud.process.send_signal(signal.SIGHUP)
    wait_for(cloud, "2 accepted")
    assert invoke("run", PROMPT, "--cloud", line, "-n", "4", "--draft", "off").status == exits.DONE


def test_a_key_withdrawn_in_mid_answer(guarded, popen, read, invoke) -> None:
    """The answer ends where it is and is worked on no more; the neighbour's is not touched."""
    cloud, (line, other), keys = guarded
    before, long = keys.read_text(), ["-n", "1500", "--ignore-eos", "--draft", "off"]
    gone = popen("run", PROMPT, "--cloud", line, *long, "--reconnect", "0.5")
    stays = popen("run", PROMPT, "--cloud", other, *long)
    start, theirs = read(gone, 20), read(stays, 20)
    args = ["--api-key-file", keys, "--pid", str(cloud.process.pid)]
    assert "told" in invoke("cloud", "revoke", "pi", *args).out
    rest, err = gone.communicate(timeout=60)
    assert gone.returncode == exits.FAILED
    assert "this key is not valid" in err.decode()
    status = invoke("cloud", "status", "--cloud", other, "--json").json
    assert status["running"] <= 1
    theirs += stays.communicate(timeout=60)[0]
    assert stays.returncode == exits.DONE
    assert len(start + rest) < len(theirs)
    assert theirs.startswith((start + rest).rstrip())
    keys.write_text(before)
    cloud.process.send_signal(signal.SIGHUP)


def wait_for(cloud, text: str) -> None:
    deadline = time.monotonic() + 10
    while not any(text in line for line in cloud.errors):
        assert time.monotonic() < deadline, cloud.errors
        time.sleep(0.02)


def test_health_says_loading_and_then_ok(popen) -> None:
    pytest.importorskip("llama_cpp")
    process = popen("cloud", "serve", "--port", "0", "--metrics-port", "0", "--json",
                    "--target-backend", "llama", "--log-format", "json")  # fmt: skip
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["url"].replace("ws:", "http:")
    base = url.removesuffix("/v1/stream")
    with urllib.request.urlopen(f"{base}/health", timeout=5) as answer:
        assert json.load(answer) == {"status": "ok"}
    with urllib.request.urlopen(f"{base}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    for name in (
        "spec_decode_num_drafts_total",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_count",
    ):
        assert f"outrider:{name}" in text, name
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == exits.DONE
    lines = [json.loads(line) for line in err.decode().splitlines()]
    assert any("ready" in line["message"] for line in lines)
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)


def test_a_log_that_cannot_be_written_stops_nothing(popen, invoke) -> None:
    """The disk is full for the log from the first line on."""
    pytest.importorskip("llama_cpp")
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with full.open("wb") as nowhere:
        process = popen("cloud", "serve", "--port", "0", "--json", "--verbose",
                        "--target-backend", "llama", stderr=nowhere)  # fmt: skip
    url = json.loads(process.stdout.readline())["url"]
    for _ in range(2):
        result = invoke("run", PROMPT, "--cloud", url, "-n", "6", "--draft", "off", "--json")
        assert result.json["tokens"] == 6
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == exits.DONE

"""Who is let in, on every route, and what is refused before anything is done."""

from __future__ import annotations

import http.client
import json
import socket

import openai
import pytest

from outrider.edge_client.endpoint.guard import OPEN_PATHS
from outrider.runtime.net.keys import KeyFile

KEY = "a-key-for-apps-0123456789"
HELLO = {"messages": [{"role": "user", "content": "And it came to pass"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def locked(written):
    found = written(
        "some words. ",
        keys=KeyFile.of(KEY, "app"),
        origins=("https://app.example",),
        alias="gpt-4o",
        max_body=100_000,
    )
    found.key = KEY
    return found


@pytest.fixture(scope="module")
def open_to_all(written):
    return written("some words. ", origins=("*",))


def every_route(running) -> list[tuple[str, str]]:
    """Method and path of every route that there is, the application asked itself."""
    import outrider.edge_client.endpoint.app as module

    guard = module.build(running.endpoint)
    return [
        (method, route.path.replace("{name:path}", "gpt-4o"))
        for route in guard._app.routes
        for method in route.methods - {"HEAD"}
    ]


def test_every_route_wants_the_key(locked) -> None:
    routes = every_route(locked)
    assert len(routes) >= 10
    for method, path in [*routes, ("GET", "/no/such"), ("DELETE", "/v1/models"), ("GET", "/docs")]:
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {KEY}"}):
            status, headers, came = locked.call(method, path, HELLO, **given)
            if path in OPEN_PATHS:
                assert status in (200, 405), path
                continue
            assert status == 401, (method, path)
            assert came["error"]["code"] == "invalid_api_key"
            assert headers["www-authenticate"] == "Bearer"
        status, _, _ = locked.call(method, path, HELLO, Authorization=f"Bearer {KEY}")
        assert status != 401


def test_the_clients_error_for_a_wrong_key(locked) -> None:
    wrong = openai.OpenAI(base_url=locked.base, api_key="sk-wrong", max_retries=0)
    with wrong, pytest.raises(openai.AuthenticationError, match="wrong API key"):
        wrong.models.list()
    assert locked.client().models.list().data[0].id == "gpt-4o"


def test_a_websocket_finds_no_way_around(locked) -> None:
    status, _, _ = locked.call(
        "GET",
        "/v1/models",
        None,
        Connection="Upgrade",
        Upgrade="websocket",
        Sec_WebSocket_Key="AAAAAAAAAAAAAAAAAAAAAA==",
        Sec_WebSocket_Version="13",
    )
    assert status == 401


def test_routes_and_methods(locked) -> None:
    for method, path, expected in (
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("POST", "/health", 405),
    ):
        status, headers, came = locked.call(method, path, HELLO, Authorization=f"Bearer {KEY}")
        assert status == expected
        assert set(came["error"]) == {"message", "type", "param", "code"}
        assert (expected == 405) == ("allow" in headers)


def test_pages_from_elsewhere(locked, open_to_all) -> None:
    key = {"Authorization": f"Bearer {KEY}"}
    status, _, came = locked.call("GET", "/v1/models", Origin="https://evil.example", **key)
    assert (status, came["error"]["code"]) == (403, "origin")
    status, headers, _ = locked.call("GET", "/v1/models", Origin="https://app.example", **key)
    assert (status, headers["access-control-allow-origin"]) == (200, "https://app.example")
    assert "origin" in headers["vary"].lower()
    own = f"http://127.0.0.1:{locked.port}"
    assert locked.call("GET", "/v1/models", Origin=own, **key)[0] == 200
    status, headers, _ = open_to_all.call("GET", "/v1/models", Origin="https://any.example")
    assert (status, headers["access-control-allow-origin"]) == (200, "https://any.example")


def test_preflight_needs_no_key(locked) -> None:
    asked = {"Access_Control_Request_Method": "POST"}
    status, headers, _ = locked.call(
        "OPTIONS", "/v1/chat/completions", Origin="https://app.example", **asked
    )
    assert status == 204
    assert headers["access-control-allow-origin"] == "https://app.example"
    assert "Authorization" in headers["access-control-allow-headers"]
    status, headers, _ = locked.call(
        "OPTIONS", "/v1/chat/completions", Origin="https://evil.example", **asked
    )
    assert status == 403
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[", "10.0.0.7"])
def test_a_name_that_is_not_this_machine(locked, host) -> None:
    status, _, _ = locked.call("GET", "/health", Host=host)
    assert status in (400, 403)


@pytest.mark.parametrize("host", ["localhost:99", "127.0.0.1", "[::1]:8080"])
def test_names_of_this_machine(locked, host) -> None:
    assert locked.call("GET", "/health", Host=host)[0] == 200


def test_a_body_that_is_too_large(embedded, locked) -> None:
    for size in (10 << 20, (8 << 20) + 1):
        status, _, came = embedded.call("POST", "/v1/chat/completions", b" " * size)
        assert (status, came["error"]["code"]) == (413, "request_too_large")
    status, _, _ = locked.call(
        "POST", "/v1/chat/completions", b" " * 100_001, Authorization=f"Bearer {KEY}"
    )
    assert status == 413


def test_a_body_that_does_not_say_how_large_it_is(locked) -> None:
    link = http.client.HTTPConnection("127.0.0.1", locked.port, timeout=30)
    pieces = (b" " * 10_000 for _ in range(11))
    headers = {"Authorization": f"Bearer {KEY}"}
    link.request("POST", "/v1/completions", pieces, headers, encode_chunked=True)
    response = link.getresponse()
    assert (response.status, json.loads(response.read())["error"]["code"]) == (
        413,
        "request_too_large",
    )
    link.close()


def test_the_endpoint_outlives_garbage(locked) -> None:
    for data in (
        b"\x16\x03\x01\x02\x00\x01",
        b"GET\r\n\r\n",
        b"POST / HTTP/9\r\n\r\n",
        b"\0" * 999,
    ):
        with socket.create_connection(("127.0.0.1", locked.port), timeout=10) as link:
            link.sendall(data)
            link.shutdown(socket.SHUT_WR)
            while link.recv(4096):
                pass
    assert locked.call("GET", "/health")[0] == 200


def test_while_it_loads(locked) -> None:
    service = locked.endpoint.service
    locked.on_loop(lambda: setattr(locked.endpoint, "service", None))
    try:
        for method, path in every_route(locked):
            if path in ("/", "/page.js", "/page.css", "/metrics", "/demo/link"):
                continue
            status, headers, came = locked.call(method, path, HELLO, Authorization=f"Bearer {KEY}")
            assert (status, came["error"]["code"]) == (503, "loading"), path
            assert headers["retry-after"] == "1"
    finally:
        locked.on_loop(lambda: setattr(locked.endpoint, "service", service))
    assert locked.call("GET", "/health")[2] == {"status": "ok", "link": "up"}


def test_an_alias_and_no_other_name(locked) -> None:
    client = locked.client()
    for name in ("gpt-4o", locked.service.model):
        made = client.completions.create(model=name, prompt="And it came to pass", max_tokens=1)
        assert made.model == name
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-5", prompt="x")
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


def test_metrics(locked) -> None:
    key = {"Authorization": f"Bearer {KEY}"}
    locked.call("POST", "/v1/chat/completions", HELLO, **key)
    status, headers, came = locked.call("GET", "/metrics", **key)
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    for name in (
        "outrider:spec_decode_num_draft_tokens_total",
        "outrider:generation_tokens_total",
        "outrider:time_to_first_token_seconds_bucket",
        'outrider:http_responses_total{code="401",route="/v1/models"}',
        "outrider:rtt_seconds",
    ):
        assert name in came

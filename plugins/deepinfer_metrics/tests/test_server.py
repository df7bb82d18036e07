"""What is served, and to whom."""

from __future__ import annotations

import json
import socket
from http.client import HTTPConnection
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from deepinfer_core.errors import ConfigError
from deepinfer_metrics.server import Server


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as err:
        return err.code, err.read().decode()


@pytest.fixture
def wrong() -> list[str]:
    return []


@pytest.fixture
def server(wrong: list[str]) -> Any:
    made = Server("127.0.0.1", 0, lambda: b"di_x 1\n", {"/ready": lambda: wrong}, is_public=False)
    yield made
    made.close()


def test_paths_answer_with_their_text_and_status(server: Server, wrong: list[str]) -> None:
    assert get(server.port, "/metrics?x=1") == (200, "di_x 1\n")
    assert get(server.port, "/ready") == (200, '{"ok": true, "wrong": []}\n')
    wrong.append("a step hangs")
    status, text = get(server.port, "/ready")
    assert (status, json.loads(text)) == (503, {"ok": False, "wrong": ["a step hangs"]})
    assert get(server.port, "/") == (404, "there are: /metrics, /ready\n")


@pytest.mark.parametrize("path", ["/metrics", "/ready", "/"])
def test_head_has_the_status_and_headers_of_get_and_no_body(server: Server, wrong: list[str], path: str) -> None:
    wrong.append("a step hangs")
    answers = {}
    for method in ("GET", "HEAD"):
        connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request(method, path)
        answer = connection.getresponse()
        headers = {name: value for name, value in answer.getheaders() if name != "Date"}
        answers[method] = (answer.status, headers, answer.read())
        connection.close()
    assert answers["HEAD"] == (*answers["GET"][:2], b"")
    assert answers["GET"][2]


def test_port_that_is_taken_is_refused(server: Server) -> None:
    with pytest.raises(ConfigError) as caught:
        Server("127.0.0.1", server.port, bytes, {}, is_public=False)
    assert caught.value.what == f"cannot listen on 127.0.0.1:{server.port}"
    assert caught.value.reason == "Address already in use"
    assert get(server.port, "/ready")[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_address_that_others_reach_needs_a_word_for_it(host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Server(host, 0, bytes, {}, is_public=False)
    assert caught.value.what == f"{host} can be reached by other machines"
    assert caught.value.remedy == "leave --metrics-host out, or add --metrics-public"


def test_public_address_is_served_if_asked_for() -> None:
    server = Server("0.0.0.0", 0, lambda: b"x\n", {}, is_public=True)
    assert get(server.port, "/metrics") == (200, "x\n")
    server.close()
    server.close()


def test_loopback_may_be_a_name() -> None:
    Server("localhost", 0, bytes, {}, is_public=False).close()


def test_host_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="'no such host' is no address"):
        Server("no such host", 0, bytes, {}, is_public=False)


def test_client_that_leaves_disturbs_nobody(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as left:
        left.sendall(b"GET /met")
    assert get(server.port, "/metrics")[0] == 200
    assert capfd.readouterr().err == ""

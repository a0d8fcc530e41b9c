"""The service over HTTP: every route, and every mistake as users make it."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hcl.serve.service import Service
from tests.support import served
from tests.support.served import TOKEN, Client, listening

pytestmark = pytest.mark.serve
pytest.importorskip("starlette", reason=served.WITHOUT)
pytest.importorskip("uvicorn", reason=served.WITHOUT)

LARGEST = 200_000
PNG = {"Content-Type": "image/png"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    folder = tmp_path_factory.mktemp("blobs")
    return Service(served.on_blobs(folder / "blobs.safetensors"), folder / "state.safetensors")


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Client]:
    with listening(service, largest=LARGEST) as found:
        yield found


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("pictures")
    model, weights = served.on_pictures(folder)
    with listening(Service(model, folder / "s.safetensors", str(weights), "cpu")) as found:
        yield found


def rows(task: int, count: int) -> tuple[list[list[float]], list[str]]:
    x, names = served.blobs(task, count)
    return x.tolist(), names


def test_health_and_state(client: Client) -> None:
    assert client.get("/health").json["status"] == "ok"
    state = client.get("/state").json
    assert state["model"] == "hcl-plus-ta"
    assert [task["classes"] for task in state["tasks"]] == [
        list(served.NAMES[i : i + 2]) for i in (0, 2, 4)
    ]
    assert len(state["changes"]) == 2
    assert state["input"]["features"] == 64


def test_embeddings_are_answered_learned_and_counted(client: Client) -> None:
    x, names = rows(1, 6)
    answers = client.post("/predict", {"embeddings": x}, token=None).json["answers"]
    assert [a["class"] for a in answers] == names
    assert [a["task"] for a in answers] == [2] * 6
    assert all(0 < a["probability"] <= 1 and a["error"] is None for a in answers)
    before = client.get("/state").json
    told = client.post("/learn", {"ids": [a["id"] for a in answers], "labels": names}).json
    assert (told["learned"], told["right_before"]) == (6, 6)
    more = client.post("/learn", {"embeddings": x[:2], "labels": names[:2]}).json
    assert more["labelled"]["samples"] == before["labelled"]["samples"] + 8
    seen = more["samples"] + more["waiting"]
    assert seen == before["samples"] + before["waiting"] + 8
    assert client.get("/state").json["stream"][-1]["kind"] == "learn"


def test_images_are_answered_and_learned(seeing: Client) -> None:
    files = [served.picture(served.SHOWN[i], 1000 + i) for i in range(4)]
    form = [("image", file) for file in files]
    answers = seeing.form("/predict", [*form, ("image", b"text")], token=None)
    assert answers.status == 200
    found = answers.json["answers"]
    assert [a["class"] for a in found] == [*served.PICTURED, None]
    assert [a["input"] for a in found] == [f"{i}.png" for i in range(5)]
    assert "not one of PNG" in found[4]["error"]
    one = seeing.send("POST", "/predict", files[2], PNG).json["answers"]
    assert [a["class"] for a in one] == [served.PICTURED[2]]
    labels = [("label", name) for name in served.PICTURED]
    assert seeing.form("/learn", [*form, *labels]).json["right_before"] == 4
    assert seeing.form("/learn", [form[0], form[0], labels[0]]).json["learned"] == 2  # one for all
    new = [form[0], ("label", "lines"), ("as", f"lines={served.PICTURED[0]}")]
    assert seeing.form("/learn", new).json["learned"] == 1


IMAGE_MISTAKES: list[tuple[str, list[tuple[str, Any]], int, str]] = [
    ("/predict", [("image", b"text")], 422, "no image can be read: 0.png: not one of PNG"),
    ("/predict", [("picture", b"text")], 422, "a field 'picture'; expected image."),
    ("/predict", [("image", "text")], 422, "'image' must be a file"),
    ("/predict", [("label", "cat")], 422, "a field 'label'"),
    ("/predict", [], 422, "no file in a field 'image'"),
    ("/learn", [("image", served.picture(0, 0))], 422, "1 samples, but 0 labels"),
    ("/learn", [("image", b"text"), ("label", "x")], 422, "image 1: not one of PNG"),
    ("/learn", [("image", served.picture(0, 0)), ("label", "owl")], 422, "'owl' is not known"),
    ("/learn", [("image", served.picture(0, 0)), ("label", "a"), ("task", "x")], 422, "task is"),
    ("/learn", [("image", served.picture(0, 0)), ("label", "a"), ("as", "b")], 422, "NEW=KNOWN"),
]


@pytest.mark.parametrize(("path", "fields", "status", "said"), IMAGE_MISTAKES)
def test_a_mistake_in_a_form(
    seeing: Client, path: str, fields: list[tuple[str, Any]], status: int, said: str
) -> None:
    before = seeing.get("/state").json
    reply = seeing.form(path, fields)
    assert (reply.status, said in reply.json["error"]) == (status, True), reply.body
    assert seeing.get("/state").json == before


GOOD = [[0.0] * 64]
JSON_MISTAKES: list[tuple[str, Any, int, str]] = [
    ("/predict", {}, 422, "expected embeddings"),
    ("/predict", [1, 2], 422, "expected an object"),
    ("/predict", {"embedding": GOOD}, 422, "with embeddings alone"),
    ("/predict", {"embeddings": []}, 422, "list of rows"),
    ("/predict", {"embeddings": [[]]}, 422, "list of rows"),
    ("/predict", {"embeddings": [[1.0], [1.0, 2.0]]}, 422, "list of rows"),
    ("/predict", {"embeddings": [["a"] * 64]}, 422, "list of rows"),
    ("/predict", {"embeddings": [[None] * 64]}, 422, "list of rows"),
    ("/predict", {"embeddings": [[1.0] * 65]}, 422, "trained on samples of 64 numbers"),
    ("/predict", {"embeddings": [[1e300] * 64]}, 422, "not finite"),
    ("/predict", {"embeddings": [[10**400] * 64]}, 422, "list of rows"),
    ("/learn", {"embeddings": GOOD, "ids": [1], "labels": ["cat"]}, 422, "one of them"),
    ("/learn", {"embeddings": GOOD}, 422, "labels: expected a list of names"),
    ("/learn", {"embeddings": GOOD, "labels": [3]}, 422, "labels: expected a list of names"),
    ("/learn", {"embeddings": GOOD, "labels": ["cat", "dog"]}, 422, "1 samples, but 2 labels"),
    ("/learn", {"embeddings": GOOD, "labels": ["owl"]}, 422, "'owl' is not known"),
    ("/learn", {"ids": [True], "labels": ["cat"]}, 422, "ids: expected"),
    ("/learn", {"ids": [], "labels": []}, 422, "no samples are given"),
    ("/learn", {"ids": [987654], "labels": ["cat"]}, 409, "no answer is remembered under 987654"),
    ("/learn", {"embeddings": GOOD, "labels": ["cat"], "task": 1}, 422, "finds its tasks itself"),
    ("/learn", {"embeddings": GOOD, "labels": ["cat"], "task": "1"}, 422, "task: is '1'"),
    ("/learn", {"embeddings": GOOD, "labels": ["cat"], "as": ["x"]}, 422, "as: expected"),
    ("/predict", {"embeddings": [[0] * 64] * 1001}, 413, "1001 samples; at most 1000"),
]


@pytest.mark.parametrize(("path", "value", "status", "said"), JSON_MISTAKES)
def test_a_mistake_in_json(client: Client, path: str, value: Any, status: int, said: str) -> None:
    before = client.get("/state").json
    reply = client.post(path, value)
    assert (reply.status, said in reply.json["error"]) == (status, True), reply.body
    assert "\n" not in reply.json["error"]
    assert client.get("/state").json == before


@pytest.mark.parametrize("body", [b"", b"{", b'{"embeddings": [[NaN]]}', b"[" * 90_000, b"\xff"])
def test_what_is_not_json(client: Client, body: bytes) -> None:
    reply = client.send("POST", "/predict", body, {"Content-Type": "application/json"})
    assert reply.status == 400
    assert "not JSON" in reply.json["error"]


def test_other_types_and_broken_forms(client: Client) -> None:
    for kind in ("text/plain", "image/gif", ""):
        reply = client.send("POST", "/predict", b"x", {"Content-Type": kind})
        assert reply.status == 415
        assert "expected multipart/form-data, application/json, image/png" in reply.json["error"]
    headers = {"Authorization": f"Bearer {TOKEN}", **PNG}
    assert client.send("POST", "/learn", b"x", headers).status == 415
    for boundary in ("", "; boundary=limit"):
        headers = {"Content-Type": f"multipart/form-data{boundary}"}
        reply = client.send("POST", "/predict", b"--limit\r\nno form", headers)
        assert reply.status in (400, 422)
        assert reply.json["error"]


def test_other_paths_and_methods(client: Client) -> None:
    assert (client.get("/models").status, client.get("/predict").status) == (404, 405)
    assert client.get("/models").json == {
        "error": "there is no '/models' here; there are /, /health, /state, /predict, /learn."
    }
    assert client.get("/predict").json == {"error": "/predict does not take GET, but POST."}
    assert client.send("POST", "/state").status == 405


# Who may


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"]
)
def test_learning_needs_the_token(client: Client, header: str | None) -> None:
    before = client.get("/state").json
    value = {"embeddings": GOOD, "labels": ["cat"]}
    headers = {"Content-Type": "application/json"}
    headers |= {} if header is None else {"Authorization": header}
    reply = client.send("POST", "/learn", json.dumps(value), headers)
    assert reply.status == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert TOKEN not in reply.body.decode()
    assert client.get("/state").json == before


def test_on_loopback_another_host_is_refused(client: Client, service: Service) -> None:
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example"):
        reply = client.send("GET", "/state", headers={"Host": host})
        assert (reply.status, "tasks" in reply.json) == (400, False)
    for host in ("localhost", f"localhost:{client.port}", "[::1]:80", "127.0.0.1"):
        assert client.send("GET", "/state", headers={"Host": host}).status == 200
    with listening(service, hosts=None) as anywhere:
        assert anywhere.send("GET", "/state", headers={"Host": "here.example"}).status == 200


# How much


def test_a_request_that_says_it_is_too_large_is_not_read(client: Client) -> None:
    reply = client.send("POST", "/predict", b" " * (LARGEST + 1), PNG)
    assert reply.status == 413
    assert f"larger than {LARGEST} bytes" in reply.json["error"]


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=limit"])
def test_a_request_that_does_not_say_is_cut_off(client: Client, kind: str) -> None:
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as connection:
        connection.sendall((head + "Transfer-Encoding: chunked\r\n\r\n").encode())
        start = b'--limit\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
        chunks = [start, *[b" " * 50_000] * 5]
        with contextlib.suppress(ConnectionError):  # it may be cut off before all is sent
            for chunk in chunks:
                connection.sendall(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        answer = connection.recv(4096).decode()
    assert answer.startswith("HTTP/1.1 413")


def test_the_page_allows_nothing_from_outside(client: Client) -> None:
    page = client.get("/")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self'")
    assert "unsafe" not in policy
    text = page.body.decode()
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert "innerHTML" not in text


def test_an_error_of_ours_is_not_shown(client: Client, service: Service, monkeypatch: Any) -> None:
    def broken(x: object) -> None:
        raise RuntimeError("secret path")

    monkeypatch.setattr(service, "predict", broken)
    reply = client.post("/predict", {"embeddings": GOOD})
    assert (reply.status, "RuntimeError" in reply.json["error"]) == (500, True)
    assert b"secret" not in reply.body
    assert client.get("/health").status == 200


def test_a_model_on_embeddings_takes_no_images(client: Client) -> None:
    reply = client.send("POST", "/predict", served.picture(0, 0), PNG)
    assert (reply.status, "takes embeddings, not images" in reply.json["error"]) == (422, True)


def test_requests_side_by_side_lose_nothing(service: Service, client: Client) -> None:
    from concurrent.futures import ThreadPoolExecutor

    x, names = rows(2, 40)
    before = client.get("/state").json

    def ask(i: int) -> int:
        if i % 2:
            value = {"embeddings": x[i : i + 1], "labels": names[i : i + 1]}
            return client.post("/learn", value).status
        answers = client.post("/predict", {"embeddings": x[i : i + 1]}).json["answers"]
        return 200 if answers[0]["class"] == names[i] else 0

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(40))) == {200}
    after = client.get("/state").json
    assert after["labelled"]["samples"] == before["labelled"]["samples"] + 20
    assert after["samples"] + after["waiting"] == before["samples"] + before["waiting"] + 20
    again = Service(service.model, Path(service.state_file))
    assert again.state()["labelled"] == after["labelled"]
    assert again.state()["samples"] == after["samples"]

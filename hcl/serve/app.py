"""The service over HTTP: routes, their bounds, and what they say to bad input.

| route | what |
| --- | --- |
| ``GET /`` | the page |
| ``GET /health`` | whether it is there |
| ``GET /state`` | tasks, changes, samples seen, the stream |
| ``POST /predict`` | images or embeddings to answers |
| ``POST /learn`` | the same with labels; needs the token |

Every answer but the page is JSON; an error is ``{"error": …}`` in one sentence. Whoever can reach
the service may ask; only who has the token can change the model.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from hcl import __version__
from hcl.errors import HCLError
from hcl.serve.service import NotSaved, Point, Service, Unknown

LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")
IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp")
FORM, JSON = "multipart/form-data", "application/json"
SAMPLES_AT_ONCE = 1000  # in one request
ROUTES = ("/", "/health", "/state", "/predict", "/learn")


@dataclass(frozen=True)
class Bounds:
    """What is let in.

    Attributes:
        token: for what changes the model.
        largest: bytes of a request.
        hosts: names by which the service may be called; ``None`` allows any. On loopback the others
            are refused, so that a page from elsewhere can't ask by a name that it made point here.
    """

    token: str
    largest: int = 32 << 20
    hosts: tuple[str, ...] | None = LOOPBACK


@dataclass(frozen=True)
class _Asked:
    """What a request brings: samples of one kind, and for ``learn`` what is known of them."""

    images: list[bytes] | None = None
    names: list[str] | None = None  # of the files
    embeddings: NDArray[np.float32] | None = None
    ids: list[int] | None = None
    labels: list[str] | None = None
    places: dict[str, str] | None = None
    task: int | None = None


def make_app(service: Service, bounds: Bounds) -> Any:
    """The ASGI application."""

    async def page(request: Request) -> Response:
        return HTMLResponse(_page, headers={"Content-Security-Policy": _policy})

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__})

    async def state(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(service.state))

    async def predict(request: Request) -> Response:
        asked = await _read(request, labelled=False)
        answers = await run_in_threadpool(_predict, service, asked)
        return JSONResponse({"answers": answers})

    async def learn(request: Request) -> Response:
        _check_token(request, bounds.token)
        asked = await _read(request, labelled=True)
        point = await run_in_threadpool(_learn, service, asked)
        told = await run_in_threadpool(service.state)
        kept = ("samples", "waiting", "labelled", "tasks")
        return JSONResponse({**_told(point), **{key: told[key] for key in kept}})

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/health", health),
            Route("/state", state),
            Route("/predict", predict, methods=["POST"]),
            Route("/learn", learn, methods=["POST"]),
        ],
        exception_handlers={
            HTTPException: _http_error,
            HCLError: _mistake,
            Unknown: _unknown,
            NotSaved: _not_saved,
            Exception: _failure,
        },
    )
    return _Guard(app, bounds)


def _told(point: Point) -> dict[str, Any]:
    changes = [{"batch": b, "verdict": v, "task": t} for b, v, t in point.changes]
    return {"learned": point.count, "right_before": point.right, "changes": changes}


# What a request brings


async def _read(request: Request, labelled: bool) -> _Asked:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in IMAGE_TYPES and not labelled:
        return _Asked(images=[await request.body()], names=["image"])
    if kind == FORM:
        return await _read_form(request, labelled)
    if kind == JSON:
        return _read_json(await request.body(), labelled)
    images = "" if labelled else f", {', '.join(IMAGE_TYPES)}"
    raise HTTPException(
        415, f"Content-Type is {kind or 'missing'!r}; expected {FORM}, {JSON}{images}."
    )


async def _read_form(request: Request, labelled: bool) -> _Asked:
    fields: dict[str, list[Any]] = {"image": [], "label": [], "as": [], "task": []}
    form = await request.form(max_files=SAMPLES_AT_ONCE, max_fields=2 * SAMPLES_AT_ONCE)
    try:
        for name, value in form.multi_items():
            if name not in fields or (name != "image" and not labelled):
                known = ", ".join(fields if labelled else ["image"])
                raise HTTPException(422, f"the form has a field {name!r}; expected {known}.")
            if isinstance(value, UploadFile) != (name == "image"):
                what = "a file" if name == "image" else "a text"
                raise HTTPException(422, f"the field {name!r} must be {what}.")
            fields[name].append(value)
        if not fields["image"]:
            raise HTTPException(422, "the form has no file in a field 'image'.")
        images = [await upload.read() for upload in fields["image"]]
        names = [str(upload.filename or "image") for upload in fields["image"]]
    finally:
        await form.close()
    labels = fields["label"]
    if labelled and len(labels) == 1:
        labels = labels * len(images)  # one for all
    if len(fields["task"]) > 1 or not all(re.fullmatch(r"[1-9]\d{0,5}", t) for t in fields["task"]):
        raise HTTPException(422, f"task is {fields['task']}; expected one number from 1.")
    places = {}
    for text in fields["as"]:
        new, equals, old = text.partition("=")
        if not (new and equals and old):
            raise HTTPException(422, f"as is {text!r}; expected NEW=KNOWN.")
        places[new] = old
    task = int(fields["task"][0]) if fields["task"] else None
    return _Asked(images, names, labels=labels, places=places, task=task)


def _read_json(body: bytes, labelled: bool) -> _Asked:
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON ({error}).") from None
    allowed = ("embeddings", "ids", "labels", "as", "task") if labelled else ("embeddings",)
    if not isinstance(value, dict) or set(value) - set(allowed):
        raise HTTPException(422, f"expected an object with {', '.join(allowed)} alone.")
    if ("embeddings" in value) == ("ids" in value):
        ways = "embeddings or ids, one of them" if labelled else "embeddings"
        raise HTTPException(422, f"expected {ways}.")
    labels, ids, places = value.get("labels"), value.get("ids"), value.get("as")
    if labelled and not _all(labels, str):
        raise HTTPException(422, "labels: expected a list of names, texts, one for each sample.")
    if ids is not None and not _all(ids, int):
        raise HTTPException(422, "ids: expected a list of numbers that /predict gave.")
    if places is not None and not (isinstance(places, dict) and _all([*places.values()], str)):
        raise HTTPException(422, "as: expected an object from new names to known ones.")
    task = value.get("task")
    if task is not None and not _all([task], int):
        raise HTTPException(422, f"task: is {task!r}; expected a number from 1.")
    embeddings = _array(value["embeddings"]) if "embeddings" in value else None
    count = len(ids) if ids is not None else len(embeddings if embeddings is not None else ())
    if count > SAMPLES_AT_ONCE:
        raise HTTPException(413, f"{count} samples; at most {SAMPLES_AT_ONCE} in one request.")
    return _Asked(embeddings=embeddings, ids=ids, labels=labels, places=places, task=task)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _all(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)


def _array(rows: Any) -> NDArray[np.float32]:
    said = "embeddings: expected a list of rows of numbers, all of the same length."
    try:
        found = np.array(rows)
    except ValueError:
        raise HTTPException(422, said) from None
    if found.ndim != 2 or found.dtype.kind not in "fiu" or not found.size:
        raise HTTPException(422, said)
    with np.errstate(over="ignore"):
        return found.astype(np.float32)  # what is too large is not finite, and is refused


# What is done


def _predict(service: Service, asked: _Asked) -> list[dict[str, Any]]:
    if asked.images is None:
        answers = service.predict(asked.embeddings)  # type: ignore[arg-type]
        names = [f"row {i + 1}" for i in range(len(answers))]
    else:
        answers = service.predict_images(asked.images)
        names = asked.names or []
        if all(answer.error for answer in answers):
            said = "; ".join(f"{n}: {a.error}" for n, a in zip(names[:5], answers, strict=False))
            raise HTTPException(422, f"no image can be read: {said}.")
    return [
        {"input": name, "class": answer.name, **_without_name(answer._asdict())}
        for name, answer in zip(names, answers, strict=True)
    ]


def _without_name(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "name"}


def _learn(service: Service, asked: _Asked) -> Point:
    known = {"places": asked.places, "task": asked.task}
    labels = asked.labels or []
    if asked.images is not None:
        return service.learn_images(asked.images, labels, **known)  # type: ignore[arg-type]
    if asked.ids is not None:
        return service.learn_answered(asked.ids, labels, **known)  # type: ignore[arg-type]
    return service.learn(asked.embeddings, labels, **known)  # type: ignore[arg-type]


# Who may, and how much


def _check_token(request: Request, token: str) -> None:
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not secrets.compare_digest(
        given.strip().encode("utf-8", "replace"), token.encode()
    ):
        raise HTTPException(
            401,
            "learning needs the token: send the header 'Authorization: Bearer TOKEN'.",
            {"WWW-Authenticate": "Bearer"},
        )


_Scope = dict[str, Any]
_Receive = Callable[[], Awaitable[dict[str, Any]]]
_Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class _Guard:
    """Before any route: the name by which the service is called, and the size of what comes."""

    def __init__(self, app: Any, bounds: Bounds) -> None:
        self.app, self.bounds = app, bounds

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {key: value.decode("latin-1") for key, value in scope["headers"]}
        refused = self._refused(headers)
        if refused is not None:
            await refused(scope, receive, send)
            return
        came = 0

        async def counted() -> dict[str, Any]:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > self.bounds.largest:
                raise HTTPException(413, self._too_large)
            return message

        await self.app(scope, counted, send)

    def _refused(self, headers: Mapping[bytes, str]) -> Response | None:
        host = headers.get(b"host", "")
        name = re.sub(r":\d*$", "", host).lower()
        if self.bounds.hosts is not None and name not in self.bounds.hosts:
            listed = ", ".join(self.bounds.hosts)
            return _error(400, f"the host is {host!r}; this service is called {listed}.")
        length = headers.get(b"content-length", "")
        if length.isdecimal() and int(length) > self.bounds.largest:
            # The body is not read: the connection can't be used again.
            return _error(413, self._too_large, {"Connection": "close"})
        return None

    @property
    def _too_large(self) -> str:
        return (
            f"the request is larger than {self.bounds.largest} bytes. Send fewer samples at once."
        )


def _error(status: int, said: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": said}, status, dict(headers or {}))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = error.detail
    if error.status_code == 404:
        said = f"there is no {request.url.path!r} here; there are {', '.join(ROUTES)}."
    elif error.status_code == 405:
        ways = (error.headers or {}).get("Allow", "")
        said = f"{request.url.path} does not take {request.method}, but {ways}."
    return _error(error.status_code, said, error.headers)


async def _mistake(request: Request, error: Exception) -> Response:
    return _error(422, str(error))


async def _unknown(request: Request, error: Exception) -> Response:
    return _error(409, str(error))


async def _not_saved(request: Request, error: Exception) -> Response:
    return _error(507, str(error))


async def _failure(request: Request, error: Exception) -> Response:
    return _error(500, f"the service failed ({type(error).__name__}). Its log says more.")


# The page: one file, whose script and style are allowed by their digests and nothing else

_page = resources.files("hcl.serve").joinpath("page.html").read_text(encoding="utf-8")


def _digest(tag: str) -> str:
    found = re.search(rf"<{tag}>(.*?)</{tag}>", _page, re.DOTALL)
    assert found is not None
    return base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()


_policy = (
    "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    f"frame-ancestors 'none'; script-src 'sha256-{_digest('script')}'; "
    f"style-src 'sha256-{_digest('style')}'"
)

"""The server's only open door: TLS, and of Flower's interface the calls that a site needs, no others.

Flower's SuperLink has its control interface on the same port, and whoever reaches it can have code run. So it
listens on this machine alone, and this door stands before it. It also bounds what one site can send.
"""

import asyncio
import base64
import hmac
import json
import secrets
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from semifed.errors import RunError
from semifed.federation.bounds import LARGEST_PIECE, PIECE

CALLS = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
STATUS = "/v1/semifed/status"
BODY_SECONDS = 300.0
"""For one request to arrive: a piece of 5 MB over a line of 150 kbit/s."""

MOST_CALLS = 500
"""At once, connections without a call among them; more are told to come later."""

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class Door:
    """What comes through the front, and what does not."""

    def __init__(
        self, link: str, verify: ssl.SSLContext, limit: int, keys: Mapping[str, bytes], status: Callable[[], Any]
    ) -> None:
        self._link, self._verify, self._limit, self._keys, self._status = link, verify, limit, keys, status
        self._client: Any = None
        self._secret = secrets.token_bytes(32)
        self._sent: dict[int, int] = {}  # bytes of objects by node, since it was last asked
        self._unfolded: dict[int, int] = {}  # and what its arrays become when they are put together
        self.over: dict[int, int] = {}  # nodes that sent more than they may
        self.begun: dict[int, float] = {}  # when a node last came in, with nothing in hand, by time.monotonic

    def asked(self, node: int) -> None:
        """A node has been asked anew and may send again."""
        self._sent.pop(node, None)
        self._unfolded.pop(node, None)
        self.over.pop(node, None)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path == STATUS:
            await self._tell(scope, send)
        elif path not in CALLS or scope["method"] != "POST":
            await _answer(send, 404, b"not found")
        else:
            try:
                body = await asyncio.wait_for(_body(scope, receive), BODY_SECONDS)
            except TimeoutError:
                await _answer(send, 408, b"too slow")
                return
            if body is None:
                await _answer(send, 413, b"too large")
            elif path.endswith("/activate-node"):
                await self._let_in(scope, body, send)
            elif not path.endswith("/push-object"):
                await self._forward(scope, body, send)
            elif push := self._take_in(body):
                if await self._forward(scope, body, send) is None:
                    self._count(push, -1)
            else:
                await _answer(send, 413, b"the message is over the limit, or none")

    async def _let_in(self, scope: dict[str, Any], body: bytes, send: Send) -> None:
        """A site comes, or comes back: it has only just begun, so what it was asked before is forgotten there."""
        from flwr.proto.fleet_pb2 import ActivateNodeResponse  # noqa: PLC0415

        now = time.monotonic()  # before Flower knows it, so what is sent to the site from then on is not old
        answer = await self._forward(scope, body, send)
        if answer is not None:
            self.begun[ActivateNodeResponse.FromString(answer).node_id] = now

    def _take_in(self, body: bytes) -> "_Push | None":
        """A piece of a message, if its node is still within its limit with it; some room is for names and heads."""
        push = _push(body)
        if push is None:
            return None
        if push.node not in self.over:
            self._count(push)
        if self._sent[push.node] > self._limit + 2**20 or self._unfolded[push.node] > self._limit + PIECE:
            self.over[push.node] = self._limit
        return None if push.node in self.over else push

    def _count(self, push: "_Push", sign: int = 1) -> None:
        self._sent[push.node] = max(0, self._sent.get(push.node, 0) + sign * push.size)
        self._unfolded[push.node] = max(0, self._unfolded.get(push.node, 0) + sign * push.unfolded)

    async def _forward(self, scope: dict[str, Any], body: bytes, send: Send) -> bytes | None:
        """Hand a request on, and its answer back; what Flower said, if it took it."""
        import httpx  # noqa: PLC0415

        if self._client is None:
            self._client = httpx.AsyncClient(verify=self._verify, timeout=60, trust_env=False)
        kept = [(name, value) for name, value in scope["headers"] if name.startswith(b"flwr-") or name in _PASSED]
        try:
            response = await self._client.post(f"{self._link}{scope['path']}", content=body, headers=kept)
        except httpx.HTTPError:
            await _answer(send, 503, b"the link is being restarted")
            return None
        await _answer(send, response.status_code, response.content, response.headers.get("content-type", ""))
        return bytes(response.content) if response.status_code == 200 else None

    async def _tell(self, scope: dict[str, Any], send: Send) -> None:
        """How the run goes, for whoever holds a key of this federation: a challenge first, then its signature."""
        headers = dict(scope["headers"])
        challenge = headers.get(b"semifed-challenge", b"").decode("latin-1")
        if not challenge:
            fresh = self._sealed(f"{int(time.monotonic())}-{secrets.token_hex(16)}")
            await _answer(send, 401, json.dumps({"challenge": fresh}).encode(), "application/json")
            return
        if not self._is_ours(challenge) or not self._signed(headers, challenge):
            await _answer(send, 403, b"no key of this federation")
            return
        await _answer(send, 200, json.dumps(self._status()).encode(), "application/json")

    def _sealed(self, text: str) -> str:
        return f"{text}.{hmac.new(self._secret, text.encode(), 'sha256').hexdigest()}"

    def _is_ours(self, challenge: str) -> bool:
        """Whether a challenge was made here and within a minute; nothing is kept, so nobody can use up the room."""
        text = challenge.rpartition(".")[0]
        ours = hmac.compare_digest(self._sealed(text).encode(), challenge.encode())
        return ours and time.monotonic() - int(text.partition("-")[0]) < 60

    def _signed(self, headers: Mapping[bytes, bytes], challenge: str) -> bool:
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

        pem = self._keys.get(headers.get(b"semifed-site", b"").decode("latin-1"))
        try:
            signature = base64.b64decode(headers.get(b"semifed-signature", b""), validate=True)
            key = serialization.load_pem_public_key(pem or b"")
            assert isinstance(key, ec.EllipticCurvePublicKey)  # noqa: S101 - all of `semifed keys` are
            key.verify(signature, f"semifed status {challenge}".encode(), ec.ECDSA(hashes.SHA256()))
        except (ValueError, InvalidSignature, AssertionError):
            return False
        return True


_PASSED = (b"content-type", b"accept")


class _Push(NamedTuple):
    """One piece of a message: whose it is, its bytes, and if it is an array what that becomes when put together."""

    node: int
    size: int
    unfolded: int


def _push(body: bytes) -> _Push | None:
    """The piece in a request; None if there is none."""
    from flwr.proto.message_pb2 import PushObjectRequest  # noqa: PLC0415

    from semifed.federation.bounds import pieces  # noqa: PLC0415

    try:
        request = PushObjectRequest.FromString(body)
        return _Push(request.node.node_id, len(body), PIECE * len(pieces(request.object_content)))
    except Exception:  # protobuf has an error of its own for bytes that are none
        return None


async def _body(scope: dict[str, Any], receive: Receive) -> bytes | None:
    """The body of a request; None if it is too large, which is seen before it is read where its length is given."""
    length = dict(scope["headers"]).get(b"content-length", b"0")
    if not length.isdigit() or int(length) > LARGEST_PIECE:
        return None
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return None
        body += event.get("body", b"")
        if len(body) > LARGEST_PIECE:
            return None
        if not event.get("more_body"):
            return bytes(body)


async def _answer(send: Send, status: int, body: bytes, kind: str = "text/plain") -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Front:
    """The door, served by a thread of this process."""

    def __init__(self, door: Door, host: str, port: int, keys: Path | None) -> None:
        import uvicorn  # noqa: PLC0415

        secure = {"ssl_certfile": str(keys / "server.crt"), "ssl_keyfile": str(keys / "server.key")} if keys else {}
        config = uvicorn.Config(
            door,
            host=host,
            port=port,
            log_level="error",
            lifespan="off",
            ws="none",
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
            limit_concurrency=MOST_CALLS,
            **secure,  # type: ignore[arg-type]
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="front", daemon=True)
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.05)
        if not self._server.started:
            raise RunError(f"--address {host}:{port}: cannot be opened; it may be in use, or not of this machine")

    def _serve(self) -> None:
        with suppress(SystemExit):  # uvicorn ends so if the port is taken
            self._server.run()

    def close(self) -> None:
        """Shut the door."""
        self._server.should_exit = True
        self._thread.join(10)

"""A site's connection: letters in, answers out, over Flower's fleet interface.

Flower's own SuperNode would fetch an app from the server and run it, a new process for every message. Here the
message goes to this process instead: nothing is fetched, nothing that the server sends is run, and torch stays warm.
"""

import email.utils
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from semifed.engine.wire import Letter, LetterError, read_head, write_head
from semifed.federation import keys
from semifed.federation.addresses import host_of, is_loopback

HEARTBEAT = 10.0
"""Seconds; Flower gives a node up after two of these without a sign."""

ON_ITS_WAY = 60.0
"""Seconds that a piece of a message may take from the server's program to its link."""


class Node:
    """One site, as Flower sees it."""

    def __init__(
        self, server: str, folder: Path, insecure: bool, limit: int, clock: "Clock", poll: float = 0.5
    ) -> None:
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor  # noqa: PLC0415
        from flwr.supernode.fleet_http_client import FleetHttpClient  # noqa: PLC0415

        from semifed.federation.answers import be_careful  # noqa: PLC0415

        self._server, self._limit, self._poll = server, limit, poll
        key = keys.load_key(folder / "site.key")
        self._clock = clock
        self._public = keys.public_bytes(key)
        self._client = FleetHttpClient(
            f"{'http' if insecure else 'https'}://{server}",
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperNode"), _Signer(key, self._clock)],
            verify=False if insecure else keys.trusted(folder / "ca.crt"),
            timeout=60.0,
        )
        be_careful(self._client._client, direct=is_loopback(host_of(server)))
        self._node: Any = None
        self._over = threading.Event()

    def connect(self) -> None:
        """Take this site's place at the server; errors say what is wrong."""
        from flwr.proto.fleet_pb2 import ActivateNodeRequest  # noqa: PLC0415
        from flwr.proto.node_pb2 import Node as FlowerNode  # noqa: PLC0415

        request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT)
        self._node = FlowerNode(node_id=self._client.ActivateNode(request).node_id)
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def serve(self, answer: Callable[[Letter], Letter], ended: Callable[[], bool]) -> None:
        """Answer letters until the run is over; a connection that breaks is an error for the caller."""
        while not ended():
            message, letter = self._receive()
            if message is None:
                time.sleep(self._poll)
                continue
            self._reply(message, answer(letter) if isinstance(letter, Letter) else _failed(letter))

    def close(self) -> None:
        """Leave, if the server can still hear it."""
        from flwr.proto.fleet_pb2 import DeactivateNodeRequest  # noqa: PLC0415

        self._over.set()
        try:
            if self._node is not None:
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        except Exception:  # noqa: S110 - it is no use to this site any more, and the server finds out by itself
            pass
        finally:
            self._node = None
            self._client.close()

    def _receive(self) -> tuple[Any, "Letter | LetterError"]:
        """The next message and the letter in it, or what is wrong with it; None if there is none."""
        from flwr.common.serde import message_from_proto  # noqa: PLC0415
        from flwr.proto.fleet_pb2 import PullMessagesRequest  # noqa: PLC0415

        response = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not response.messages_list:
            return None, LetterError("")
        message, tree = message_from_proto(response.messages_list[0]), response.message_object_trees[0]
        try:
            return message, self._fetch(message.metadata.run_id, tree)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            return message, LetterError(f"the message cannot be read: {type(error).__name__}: {error}"[:200])
        except LetterError as error:
            return message, error

    def _fetch(self, run: int, tree: Any) -> Letter:
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest  # noqa: PLC0415
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree  # noqa: PLC0415
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents  # noqa: PLC0415

        from semifed.federation.bounds import check_unfolded  # noqa: PLC0415
        from semifed.federation.relay import read_record  # noqa: PLC0415

        contents: dict[str, bytes] = {}
        total = 0
        for part in iterate_object_tree(tree):
            contents[part.object_id] = self._pull(
                PullObjectRequest(node=self._node, run_id=run, object_id=part.object_id)
            )
            total += len(contents[part.object_id])
            if total > self._limit:
                raise LetterError(f"the message is over the limit of {self._limit:,} bytes")
        confirmed = ConfirmMessageReceivedRequest(node=self._node, run_id=run, message_object_id=tree.object_id)
        self._client.ConfirmMessageReceived(confirmed)
        check_unfolded(contents, self._limit)
        text, body = read_record(inflate_object_from_contents(tree.object_id, contents).content)
        return Letter(read_head(text), body)

    def _pull(self, request: Any) -> bytes:
        """One piece of a message, which may be announced before the server has it."""
        end = time.monotonic() + ON_ITS_WAY
        while True:
            found = self._client.PullObject(request)
            if found.object_found and found.object_available:
                return bytes(found.object_content)
            if not found.object_found or time.monotonic() > end:
                raise LetterError("a piece of the message did not arrive")
            time.sleep(self._poll)

    def _reply(self, message: Any, letter: Letter) -> None:
        from flwr.app import Message  # noqa: PLC0415
        from flwr.app.message import remove_content_from_message  # noqa: PLC0415
        from flwr.common.serde import message_to_proto  # noqa: PLC0415
        from flwr.proto.fleet_pb2 import PushMessagesRequest  # noqa: PLC0415
        from flwr.proto.message_pb2 import PushObjectRequest  # noqa: PLC0415
        from flwr.supercore.inflatable.inflatable_object import (  # noqa: PLC0415
            get_all_nested_objects,
            get_object_tree,
            no_object_id_recompute,
        )

        from semifed.federation.relay import letter_record  # noqa: PLC0415

        left = message.metadata.created_at + message.metadata.ttl - self._clock.now().timestamp()
        if left <= 0:
            return  # too late: the server has gone on
        reply = Message(letter_record(write_head(letter.head), letter.body), reply_to=message)
        reply.metadata.__dict__["_created_at"], reply.metadata.ttl = self._clock.now().timestamp(), left
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            objects, tree = get_all_nested_objects(reply), get_object_tree(reply)
            plain = message_to_proto(remove_content_from_message(reply))
        request = PushMessagesRequest(
            node=self._node, messages_list=[plain], message_object_trees=[tree], clientapp_runtime_list=[0.0]
        )
        response = self._client.PushMessages(request)
        for wanted in response.objects_to_push:
            self._client.PushObject(
                PushObjectRequest(
                    node=self._node,
                    run_id=message.metadata.run_id,
                    object_id=wanted,
                    object_content=objects[wanted].deflate(),
                    session_id=response.session_id,
                )
            )

    def _beat(self) -> None:
        """Tell Flower that this site is alive, training or not; what fails shows in the next call too."""
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest  # noqa: PLC0415

        while not self._over.wait(HEARTBEAT * 0.6):
            try:
                self._client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT))
            except Exception:  # noqa: S112 - the main thread's next call says what is wrong
                continue


class Clock:
    """The server's time, as its answers tell it: a site's own clock may be hours off.

    It outlives a connection, since the first call with a wrong clock is refused.
    """

    def __init__(self) -> None:
        self._ahead = timedelta(0)

    def hear(self, date: str) -> None:
        """What the server says the time is."""
        try:
            there = email.utils.parsedate_to_datetime(date)
        except (TypeError, ValueError):
            return
        ahead = there.astimezone(UTC) - datetime.now(UTC)
        self._ahead = ahead if abs(ahead) > timedelta(seconds=4) else timedelta(0)

    def now(self) -> datetime:
        """The server's time now."""
        return datetime.now(UTC) + self._ahead


class _Signer:
    """Signs every call with the site's key and the server's time, as Flower wants it."""

    def __init__(self, key: Any, clock: Clock) -> None:
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor  # noqa: PLC0415

        self._flower, self._key, self._clock = NodeAuthHttpInterceptor(key, key.public_key()), key, clock

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        from base64 import b64encode  # noqa: PLC0415

        from flwr.common.constant import TIMESTAMP_HEADER  # noqa: PLC0415
        from flwr.supercore.constant import FLEET_HTTP_SIGNATURE_HEADER  # noqa: PLC0415
        from flwr.supercore.primitives.asymmetric import sign_message  # noqa: PLC0415

        def with_the_servers_time(inner: Any) -> Any:
            stamp = self._clock.now().isoformat()
            inner.request.headers[TIMESTAMP_HEADER] = stamp
            signature = b64encode(sign_message(self._key, stamp.encode("ascii"))).decode("ascii")
            inner.request.headers[FLEET_HTTP_SIGNATURE_HEADER] = signature
            response = call_next(inner)
            self._clock.hear(response.headers.get("date", ""))
            return response

        return self._flower.intercept(context, with_the_servers_time)


def _failed(error: LetterError) -> Letter:
    return Letter({"kind": "failed", "reason": str(error)})

"""URL patterns of the sockets."""

from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, Scope
from django.urls import path, re_path

from detection.consumers.denials import deny
from detection.consumers.live import NOT_THEIRS, LiveConsumer


async def unknown_socket(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Reject a socket to any other path like one to a project that does not exist."""
    await deny(send, *NOT_THEIRS)


websocket_urlpatterns = [
    path("ws/p/<slug:project>/", LiveConsumer.as_asgi()),
    re_path(r"", unknown_socket),  # type: ignore[arg-type]
]

"""Paths of the sockets."""

from channels.generic.websocket import AsyncWebsocketConsumer
from django.urls import path, re_path

from detection.consumers.live import NOT_FOUND, LiveConsumer


class NoSuchSocket(AsyncWebsocketConsumer):
    """What answers every other path: closed with 4404."""

    channel_layer_alias = None

    async def connect(self) -> None:
        """Accept, because only then a code can be given, and close."""
        await self.accept()
        await self.close(code=NOT_FOUND)


websocket_urlpatterns = [
    path("ws/p/<slug:project>/", LiveConsumer.as_asgi()),
    re_path(r"", NoSuchSocket.as_asgi()),
]

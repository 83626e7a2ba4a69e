"""URL patterns of the sockets."""

from channels.generic.websocket import AsyncWebsocketConsumer
from django.urls import path, re_path

from detection.consumers.live import NOT_FOUND, LiveConsumer


class UnknownSocket(AsyncWebsocketConsumer):
    """Closes sockets to any other path with 4404."""

    channel_layer_alias = None

    async def connect(self) -> None:
        """Accept and close: only an accepted socket can have a close code."""
        await self.accept()
        await self.close(code=NOT_FOUND)


websocket_urlpatterns = [
    path("ws/p/<slug:project>/", LiveConsumer.as_asgi()),
    re_path(r"", UnknownSocket.as_asgi()),
]

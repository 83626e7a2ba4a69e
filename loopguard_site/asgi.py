"""Entry point of ``live``: WebSockets, long polls and the gateway. ``web`` serves all other requests."""

import os
from typing import TYPE_CHECKING, cast

from django.core.asgi import get_asgi_application

if TYPE_CHECKING:
    from asgiref.typing import ASGI3Application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loopguard_site.settings")
_http = get_asgi_application()

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402

from detection.consumers.admission import Admission  # noqa: E402
from detection.consumers.approval_long_poll import ApprovalLongPoll  # noqa: E402
from detection.consumers.origins import OriginGate  # noqa: E402
from detection.consumers.plain_http import ProbesOnly  # noqa: E402
from detection.consumers.routing import websocket_urlpatterns  # noqa: E402
from detection.gateway.application import Gateway  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": Gateway(ApprovalLongPoll(ProbesOnly(cast("ASGI3Application", _http)))),
        "websocket": OriginGate(Admission(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))),
    }
)

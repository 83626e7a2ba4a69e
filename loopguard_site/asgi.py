"""Entry point of ``live``: WebSockets, long polls and the gateway. ``web`` serves all other requests."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loopguard_site.settings")
django.setup(set_prefix=False)

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402

from detection.consumers.admission import Admission  # noqa: E402
from detection.consumers.approval_long_poll import ApprovalLongPoll  # noqa: E402
from detection.consumers.origins import OriginGate  # noqa: E402
from detection.consumers.probes import probes  # noqa: E402
from detection.consumers.routing import websocket_urlpatterns  # noqa: E402
from detection.gateway.application import Gateway  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": Gateway(ApprovalLongPoll(probes)),
        "websocket": OriginGate(Admission(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))),
    }
)

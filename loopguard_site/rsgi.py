"""Entry point of ``web``: the front, which serves API, pages and admin."""

from loopguard_site.wsgi import application as wsgi  # isort: skip - sets Django up, which the front needs

from django.conf import settings

from loopguard_site.front.server import Front

application = Front(wsgi, settings.ENV.web_threads)

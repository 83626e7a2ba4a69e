"""Entry point of ``web``: API, pages and admin under WSGI."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loopguard_site.settings")
application = get_wsgi_application()

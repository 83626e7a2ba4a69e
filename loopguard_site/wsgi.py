"""The WSGI application: API, pages and admin. ``loopguard_site.rsgi`` serves it."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loopguard_site.settings")
application = get_wsgi_application()

"""Paths of the API, the console, the administration and the health checks."""

from django.contrib import admin
from django.urls import include, path

from detection.api import operations
from detection.api.app import api

admin.autodiscover()
urlpatterns = [
    path("api/v1/", api.urls),  # first, because agents wait for it
    path("healthz", operations.healthz),
    path("readyz", operations.readyz),
    path("metrics", operations.metrics),
    path("admin/", admin.site.urls),
    path("", include("detection.console.urls")),
]
handler400 = "detection.console.error_pages.bad_request"
handler404 = "detection.console.error_pages.not_found"
handler403 = "detection.console.error_pages.forbidden"
handler500 = "detection.console.error_pages.server_error"

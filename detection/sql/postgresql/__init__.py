"""Django's PostgreSQL backend whose waits end at the deadline of the request."""

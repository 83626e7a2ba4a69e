"""Threads with connections of their own, for tests of locks."""

import threading
import time

from django.db import connection


def in_thread(do):
    def run():
        do()
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def wait_until_blocked():
    """Wait until a connection waits for a lock; return the process id of its backend."""
    for _ in range(500):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pid FROM pg_locks WHERE NOT granted")
            if row := cursor.fetchone():
                return row[0]
        time.sleep(0.01)
    raise AssertionError("nobody waits")

"""The server of `live`: uvicorn, with limits on what a client can take up.

Nothing here knows the database or what is served. Uvicorn has no limit on the time and size of the head of a request,
on requests that wait behind another one, and on clients that do not read.
"""

"""The front of `web`: reads requests and bounds their time in an event loop; threads answer them, in a fair order.

Granian runs it as an RSGI application. Nothing here knows the database, projects' data or pages.
"""

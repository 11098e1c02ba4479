"""The WebSocket driver: connect, serve, TLS, keys. The only importer of ``websockets``.

Nothing is imported here, so that a program pays only for the part that it uses.
"""

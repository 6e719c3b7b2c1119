"""Types to bytes and back: JSON, protobuf, zstd, and the one table of routes.

Client and server both read this room; it knows neither of them.
"""

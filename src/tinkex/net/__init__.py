"""Talking HTTP: one transport seam, one retry decision, shared limits, credentials, events.

This room knows requests and answers; it does not know what training or sampling is.
"""

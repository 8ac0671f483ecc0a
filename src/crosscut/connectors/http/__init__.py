"""Requests of HTTP: server-sent events as a source, posts as a sink."""

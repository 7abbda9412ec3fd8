"""A run as people see it: terminal, pages in the browser, one saved page, exports, health."""

SAMPLES = 3
"""Accepted tasks of each iteration in a saved report."""

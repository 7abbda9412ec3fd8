"""A run as people see it: terminal, pages in the browser, one saved page, exports, health."""

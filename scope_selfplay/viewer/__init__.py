"""A run in the browser: `scope view RUN`.

`pages` and `task_pages` (one function per page) - `parameters` (query strings, links) - `rendering` (templates that
escape everything) - `shown_run` (the run behind the pages, kept fresh) - `app` (the routes, and what protects the
site) - `cli`.

Pages are made on the server and work without a script; `static/viewer.js` only adds keys. Nothing is ever written,
and nothing outside the server is ever requested. The numbers are those of `inspection.overview`.
"""

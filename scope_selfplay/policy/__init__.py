"""One rollout of either role, as a generator: it yields a request for a sample or a tool's result, and is sent it."""

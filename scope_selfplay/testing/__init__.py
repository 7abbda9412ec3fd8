"""Public stand-ins for what a run needs from outside, for tests and rehearsals: nothing of the product imports them."""

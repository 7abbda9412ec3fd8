"""How hard property tests try: quickly by default, `HYPOTHESIS_PROFILE=thorough` before a release."""

import os

from hypothesis import settings

# No deadline: a busy machine must not fail a test that is right.
settings.register_profile("quick", max_examples=40, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

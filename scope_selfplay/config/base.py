"""What all sections of a run config share."""

from pydantic import BaseModel, ConfigDict


class ConfigSection(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


WHOLE_SETTINGS = frozenset({"reward", "search_turns"})
"""Settings that are mappings but are only replaced as a whole: a reward design with its settings, shares."""

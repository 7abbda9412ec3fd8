"""What all sections of a run config share."""

from pydantic import BaseModel, ConfigDict


class ConfigSection(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


WHOLE_SETTINGS = frozenset({"reward", "search_turns"})
"""Names of settings that are mappings and are only replaced as a whole: a design with its settings, a ratio."""

"""Where frozen partners are served, and how long a run waits for what it does not run itself."""

from pydantic import Field

from scope_selfplay.config.base import ConfigSection


class PartnerConfig(ConfigSection):
    base_url: str | None = None
    """Where this partner is served, such as `http://127.0.0.1:8000/v1`; it runs in this process when left out."""
    model: str | None = None
    """Name of the model there; the only one that the endpoint serves when left out."""
    api_key_env: str | None = None
    """Environment variable that holds the key."""


class PartnersConfig(ConfigSection):
    challenger: PartnerConfig = PartnerConfig()
    """The Challenger C_t that writes tasks while it is not trained."""
    solver: PartnerConfig = PartnerConfig()
    """The Solver that difficulty is tried on (S_{t-1}) and that answers the held-out tasks (S_t)."""
    concurrency: int = Field(default=256, ge=1)
    """Requests at once to one partner."""
    call: float = Field(default=900.0, gt=0)
    """Seconds for one turn, from when it is sent."""
    outage: float = Field(default=600.0, gt=0)
    """Seconds that a turn waits for a partner that is down; then the stage stops and resumes later."""

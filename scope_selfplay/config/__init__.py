"""One run as data: every setting with its meaning, unit, paper symbol and default.

A section of the file is a module: `judge`, `cluster`, `training` (challenger and solver), `rewards` (solver.reward),
and `run` for all others. Defaults are the paper's (SCOPE, Table 9) unless a field says otherwise. A file holds only
what differs; `load_config` is the only reader. A run writes its resolved config beside its results and refuses to go
on under another one (`RunConfig.hash`).
"""

from scope_selfplay.config.judge import (
    CallConfig,
    EndpointConfig,
    JudgeConfig,
    JudgeRetryConfig,
    JudgeRole,
    NoiseConfig,
)
from scope_selfplay.config.loading import field_names, load_config, parse_config, parse_settings
from scope_selfplay.config.run import (
    CompareConfig,
    CorpusConfig,
    LoraConfig,
    ModelConfig,
    PartnerConfig,
    PartnersConfig,
    RunConfig,
    TrackingConfig,
    changed_settings,
)
from scope_selfplay.config.search import EngineConfig, SearchConfig
from scope_selfplay.config.training import ChallengerConfig, SolverConfig, TrainConfig

__all__ = [
    "CallConfig",
    "ChallengerConfig",
    "CompareConfig",
    "CorpusConfig",
    "EndpointConfig",
    "EngineConfig",
    "JudgeConfig",
    "JudgeRetryConfig",
    "JudgeRole",
    "LoraConfig",
    "ModelConfig",
    "NoiseConfig",
    "PartnerConfig",
    "PartnersConfig",
    "RunConfig",
    "SearchConfig",
    "SolverConfig",
    "TrackingConfig",
    "TrainConfig",
    "changed_settings",
    "field_names",
    "load_config",
    "parse_config",
    "parse_settings",
]

"""What a fork server loads once, so that every process of a test starts at once."""

import trl

import scope_selfplay.driver.local

assert trl.GRPOTrainer and scope_selfplay.driver.local

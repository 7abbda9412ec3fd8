"""The driver: rounds until a run has ended. One round leads, looks, plans, writes the status, acts and tells.

It decides what; a `Hand` does it, on a cluster (`kubernetes`), with processes of this machine (`node`) or in this very
process (`local`). Nothing is remembered between two rounds but how long conditions have held.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from scope_selfplay.base.errors import ExitCode, UserError
from scope_selfplay.cluster.pods import IN_PROCESS, ManifestContext, Owner
from scope_selfplay.config.run import RunConfig
from scope_selfplay.driver.observed import ObservedCluster
from scope_selfplay.driver.parts import (
    Action,
    ControllerEvent,
    DesiredSteps,
    Inputs,
    RunEnd,
    VolumeState,
    read_volume,
)
from scope_selfplay.driver.plan import next_actions
from scope_selfplay.store.folder import RunFolder


class Clock(NamedTuple):
    monotonic: Callable[[], float]
    sleep: Callable[[float], object]
    wall: Callable[[], float] = time.time


class Hand:
    """What looks and acts for the driver, here without anything to look at or to tell anybody."""

    passing: tuple[type[Exception], ...] = ()
    """What may be over when the next round looks."""
    place = IN_PROCESS
    """Where programs that it starts find things."""

    def acquire(self) -> int | None:
        """The fence of this driver, higher than that of any before; None while another one leads the run."""
        return 1

    def owner(self) -> Owner:
        """Whose everything is that it makes. Raises ConfigError where there is none."""
        return Owner("driver", str(os.getpid()))

    def bring(self, config: RunConfig) -> int:
        """What others have published comes to the run's folder, where that is not theirs; `VolumeState.attempts`."""
        return 0

    def observe(self) -> ObservedCluster:
        return ObservedCluster()

    def record(self, context: ManifestContext, status: Mapping[str, str], *, acts: bool) -> None:
        """Keep the status, at the latest before anything is done (`acts`)."""

    def act(self, context: ManifestContext, action: Action) -> None:
        raise NotImplementedError

    def tell(self, context: ManifestContext, events: Sequence[ControllerEvent]) -> None:
        """Tell people what was not told in the round before."""

    def forget(self) -> None:
        """What was seen may not be so: the next round looks anew."""

    def rest(self, *, ended: bool) -> None:
        """A round is over; `ended`: nothing is left to do."""

    def release(self) -> None:
        """Leave the run to whoever leads next."""


def drive(
    controller: "Controller",
    pause: Callable[[], None],
    is_stopped: Callable[[], bool],
    say: Callable[[str], None],
) -> ExitCode:
    """Round after round until the run has ended, or this process is stopped."""
    try:
        while not is_stopped():
            if (run_end := controller.round()) is not None:
                say(run_end.message)
                return run_end.code
            pause()
        say("stopped; whoever starts next goes on from here")
        return ExitCode.TERMINATED
    finally:
        controller.stop()


class Controller:
    """One process that may lead. `read_inputs` is called every round, so that an edit is seen when it is made."""

    def __init__(
        self,
        hand: Hand,
        read_inputs: Callable[[], Inputs],
        folder: RunFolder,
        monotonic: Callable[[], float],
        *,
        only_iteration: int | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.hand = hand
        self._read_inputs = read_inputs
        self._inputs = read_inputs()
        self._folder = folder
        self._only = only_iteration
        self._monotonic = monotonic
        self._log = say
        self._since: dict[str, float] = {}
        self._problem: RunEnd | None = None
        self._said = ""
        self._volume = VolumeState(frozenset())

    def round(self) -> RunEnd | None:
        """Look once and do what is next; returns how the run ended, once nothing is left to do.

        A failure outside ends the round, not the controller. What only a person can correct winds the run down; when
        even that is refused, the UserError is raised.
        """
        try:
            run_end, self._said = self.look(), ""
            return run_end
        except self.hand.passing as error:
            # One that lasts is said once.
            if str(error) != self._said:
                self._log(f"{error}; looking again")
            self._said = str(error)
            self.hand.forget()
        except UserError as error:
            if self._problem is not None:
                raise
            self._problem = RunEnd(ExitCode.USER, str(error))
        return None

    def look(self) -> RunEnd | None:
        """A round whose failures are the caller's."""
        fence = self.hand.acquire()
        if fence is not None:
            run_end = self._lead(fence)
        else:
            # Another controller leads and may change everything.
            run_end, self._since = None, {}
            self.hand.forget()
        self.hand.rest(ended=run_end is not None)
        return run_end

    def stop(self) -> None:
        """Leave everything as it is, for the next controller to take over at once."""
        self.hand.release()

    def _lead(self, fence: int) -> RunEnd | None:
        attempts = 0 if self._problem else self.hand.bring(self._inputs.config)
        edited = self._refresh()
        config, prompt_hash, packs, _ = self._inputs
        context = ManifestContext(config, prompt_hash, packs, self.hand.owner(), fence, self.hand.place)
        observed = self.hand.observe()
        if self._problem is None:
            # Read last: a Job that was observed as ended has published its manifest by now, or never will.
            self._volume = replace(read_volume(self._folder, config), attempts=attempts)
        wanted = DesiredSteps(context, self._only, edited, self._problem)
        now = self._monotonic()
        waited = {clock: now - since for clock, since in self._since.items()}
        plan = next_actions(wanted, observed, self._volume, waited)
        self._since = {clock: self._since.get(clock, now) for clock in plan.clocks}
        self.hand.record(context, plan.status, acts=bool(plan.actions))
        for action in plan.actions:
            self.hand.act(context, action)
        self.hand.tell(context, plan.events)
        return None if plan.actions else plan.end

    def _refresh(self) -> tuple[str, ...]:
        """Read the inputs again; returns what was edited. Inputs that cannot be read any more count as an edit."""
        try:
            fresh = self._read_inputs()
        except UserError as error:
            return (str(error),)
        if not fresh.edited:
            self._inputs = fresh
        return fresh.edited

"""What a run waits for: pods that do not run are told to people, and servers that never answer are made again. Pure.

A server that is late may miss a volume, an image or a node that comes back. So it is deleted and made again, after
pauses that grow, for as long as it takes; only a program that says that it was given wrong input (64) ends the run.
"""

from collections.abc import Sequence

from scope_selfplay.controller.api import ObjectKind
from scope_selfplay.controller.attempts import pause_after
from scope_selfplay.controller.draft import Draft
from scope_selfplay.controller.ledger import GivenUp
from scope_selfplay.controller.observed import JobSeen, PodSeen, ServerSeen
from scope_selfplay.controller.servers import Server, settings_of
from scope_selfplay.errors import ExitCode

TELL_AFTER = 300.0
"""Seconds of waiting after which an Event says what is waited for."""


def late_servers(draft: Draft, servers: Sequence[Server]) -> list[Server]:
    """Those of a stage's servers that do not answer now, or are not there."""
    ready = {each.name for each in draft.observed.servers if each.ready}
    return [server for server in servers if server.name not in ready]


def servers_answer(draft: Draft, servers: Sequence[Server]) -> bool:
    """Whether a Job may start; says what the servers wait for, and gives up those that wait for nothing."""
    late, seen = late_servers(draft, servers), {each.name: each for each in draft.observed.servers}
    names = {server.name for server in late}
    given_up = {name: each for name, each in draft.ledger.given_up.items() if name in names}
    draft.ledger = draft.ledger.model_copy(update={"given_up": given_up})
    for server in late:
        if server.name in seen:
            _judge_server(draft, server, seen[server.name])
    if late:
        draft.message = draft.message or f"waiting for {', '.join(server.name for server in late)} to answer"
    # A server that is about to be changed is not the one that the Job shall meet.
    return not late and not draft.actions_on(ObjectKind.DEPLOYMENT)


def rests(draft: Draft, server: Server) -> bool:
    """Whether a server that was given up is not to be made again yet."""
    given_up = draft.ledger.given_up.get(server.name)
    if given_up is None:
        return False
    found = next((each for each in draft.observed.servers if each.name == server.name), None)
    if found is not None:
        return found.uid == given_up.uid
    pause = pause_after(given_up.times)
    if draft.waited(f"rest/{server.name}/{given_up.times}") >= pause:
        return False
    draft.message = f"{server.name} did not answer in time; it is made again within {pause:.0f} s"
    return True


def say_why_jobs_wait(draft: Draft, jobs: Sequence[JobSeen]) -> None:
    for job in jobs:
        _say_why_pods_wait(draft, job.pods)
        if not job.pods and draft.waited(f"nopod/{job.uid}") >= TELL_AFTER:
            draft.tell("NoPod", f"{job.name} has no pod for five minutes; a quota?", warning=True)


def say_why_servers_wait(draft: Draft, servers: Sequence[ServerSeen]) -> None:
    for server in servers:
        if server.problem is not None:
            draft.message = f"{server.name}: {server.problem}"
            draft.tell("NoPod", draft.message, warning=True)
        _say_why_pods_wait(draft, server.pods)


def still_ending(pods: Sequence[PodSeen]) -> str:
    """What is told of pods that take more than five minutes to end."""
    names = ", ".join(sorted(pod.name for pod in pods))
    nodes = " ".join(sorted({pod.node for pod in pods if pod.node}))
    advice = f"; where the machine is gone for good, `kubectl delete node {nodes}`" if nodes else ""
    return f"{names} did not end within five minutes{advice}"


def _judge_server(draft: Draft, server: Server, seen: ServerSeen) -> None:
    """A server without room or without a node is waited for; one that ended with 64 is not."""
    given_up = draft.ledger.given_up.get(seen.name)
    if given_up is not None and given_up.uid == seen.uid:
        draft.message = f"waiting until {seen.name} is deleted"
        draft.delete(ObjectKind.DEPLOYMENT, seen.name, seen.uid, seen.owner)
        return
    say_why_servers_wait(draft, [seen])
    refused = next((pod for pod in seen.pods if pod.exit_code == ExitCode.USER), None)
    if refused is not None:
        draft.fail(ExitCode.USER, f"{seen.name}: {refused.message or 'ended with exit 64; see its log'}")
        return
    if seen.problem is not None or any(pod.unscheduled for pod in seen.pods):
        return
    startup = settings_of(draft.author.config, server.part).startup
    if draft.waited(f"startup/{seen.uid}/{seen.body_hash}") >= startup:
        _give_up(draft, seen, startup, 1 if given_up is None else given_up.times + 1)


def _give_up(draft: Draft, seen: ServerSeen, startup: int, times: int) -> None:
    last = next((pod.message or pod.stuck for pod in seen.pods if pod.message or pod.stuck), "no message")
    given_up = {**draft.ledger.given_up, seen.name: GivenUp(uid=seen.uid, times=times)}
    draft.ledger = draft.ledger.model_copy(update={"given_up": given_up})
    draft.delete(ObjectKind.DEPLOYMENT, seen.name, seen.uid, seen.owner)
    draft.message = (
        f"{seen.name} did not answer within {startup} s ({last}); it is deleted, and made again after "
        f"{pause_after(times):.0f} s"
    )
    draft.tell("ServerLate", draft.message, warning=True)


def _say_why_pods_wait(draft: Draft, pods: Sequence[PodSeen]) -> None:
    for pod in pods:
        if pod.ending:
            # From Kubernetes 1.31 on a Job has failed only when its pods have ended, also those on a lost node.
            if draft.waited(f"ending/{pod.name}") >= TELL_AFTER:
                draft.message = still_ending([pod])
                draft.tell("StillEnding", draft.message, warning=True)
        elif pod.stuck is not None:
            draft.message = f"{pod.name}: {pod.stuck}" + (f" ({pod.message})" if pod.message else "")
            draft.tell("PodStuck", draft.message, warning=True)
        elif pod.unscheduled is not None:
            draft.message = f"{pod.name} waits for a node: {pod.unscheduled}"
            if draft.waited(f"pending/{pod.name}") >= TELL_AFTER:
                draft.tell("Pending", draft.message, warning=True)
        elif pod.starts and draft.waited(f"starting/{pod.name}") >= TELL_AFTER:
            # The kubelet tells why in Events of the pod, which the controller has no right to read.
            draft.message = (
                f"{pod.name} has had a node for five minutes and does not start: a volume or a Secret is missing, "
                f"or an image is slow; `kubectl describe pod {pod.name}` says which"
            )
            draft.tell("NotStarting", draft.message, warning=True)

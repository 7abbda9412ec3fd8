"""One call: what is retried and how long, what is refused and how it reads."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from scope_selfplay.base.errors import ExitCode, OutsideError, UserError
from scope_selfplay.driver.api import (
    TRIES,
    ApiReply,
    Body,
    ClusterClient,
    Conflict,
    LeaseLost,
    NoReply,
    ObjectKind,
    QuotaError,
)
from scope_selfplay.testing.fake_cluster import ApiFault, FakeCluster

JOB: Body = {"metadata": {"name": "job"}, "spec": {"completions": 2, "suspend": False}}


@pytest.mark.fault(14)
def test_retry_after_is_honoured() -> None:
    fake, slept = FakeCluster(), list[float]()
    fake.faults = lambda call: ApiFault.TOO_MANY if call.number < 2 else None
    ClusterClient(fake, rng=Random(0), sleep=slept.append).list(ObjectKind.JOB, "")
    assert len(slept) == 2
    assert min(slept) >= 1


@pytest.mark.fault(14)
def test_pauses_grow_and_differ_between_controllers() -> None:
    runs = []
    for seed in (1, 2):
        slept: list[float] = []
        fake = FakeCluster()
        fake.faults = lambda call: ApiFault.LOST
        with pytest.raises(OutsideError, match=f"no success in {TRIES} tries .connection refused."):
            ClusterClient(fake, rng=Random(seed), sleep=slept.append).list(ObjectKind.JOB, "")
        assert len(slept) == TRIES - 1
        assert sum(slept) < 31
        runs.append(slept)
    assert runs[0] != runs[1]


def test_every_request_has_a_timeout() -> None:
    timeouts: list[float] = []

    class Noting(FakeCluster):
        def send(self, *args: Any, timeout: float, **rest: Any) -> ApiReply:
            timeouts.append(timeout)
            return super().send(*args, timeout=timeout, **rest)

    cluster = _cluster(Noting())
    cluster.list(ObjectKind.JOB, "")
    cluster.create(ObjectKind.JOB, JOB)
    cluster.apply(ObjectKind.SERVICE, JOB)
    assert timeouts == [10.0] * 3


@pytest.mark.fault(14)
@pytest.mark.parametrize("fault", [ApiFault.LOST_AFTER, ApiFault.SERVER_ERROR_AFTER])
def test_a_create_that_may_have_happened_is_read_again(fault: ApiFault) -> None:
    fake = FakeCluster()
    fake.faults = lambda call: fault if call.number == 0 else None
    found, is_new = _cluster(fake).create(ObjectKind.JOB, JOB)
    assert (found["metadata"]["name"], is_new) == ("job", False)
    assert [call.method for call in fake.calls] == ["POST", "POST", "GET"]
    assert fake.created == {(ObjectKind.JOB, "job"): 1}


@pytest.mark.fault(14)
@pytest.mark.parametrize("fault", [ApiFault.LOST_AFTER, ApiFault.SERVER_ERROR_AFTER])
def test_a_replace_that_meets_its_own_result_is_done(fault: ApiFault) -> None:
    fake = FakeCluster()
    cluster = _cluster(fake)
    made, _ = cluster.create(ObjectKind.LEASE, {"metadata": {"name": "x"}, "spec": {"holderIdentity": "me"}})
    version = made["metadata"]["resourceVersion"]
    body = {"metadata": {"name": "x", "resourceVersion": version}, "spec": {"holderIdentity": "you"}}
    fake.faults = lambda call: fault if call.number == 1 else None
    assert cluster.replace(ObjectKind.LEASE, body)["spec"] == body["spec"]
    with pytest.raises(Conflict):
        cluster.replace(ObjectKind.LEASE, body | {"spec": {"holderIdentity": "she"}})


@pytest.mark.fault(14)
@pytest.mark.parametrize("fault", [ApiFault.LOST_AFTER, ApiFault.SERVER_ERROR_AFTER])
def test_an_event_that_exists_already_is_not_read_again(fault: ApiFault) -> None:
    fake = FakeCluster()
    fake.faults = lambda call: fault if call.number == 0 else None
    body = {"metadata": {"name": "r1.e1"}, "message": "m"}
    assert _cluster(fake).create(ObjectKind.EVENT, body) == (body, False)
    assert [call.method for call in fake.calls] == ["POST", "POST"]


@pytest.mark.fault(14)
def test_an_apply_that_may_have_happened_and_cannot_be_read_is_checked_in_the_next_round() -> None:
    class Slow(FakeCluster):
        def send(self, *args: Any, **rest: Any) -> ApiReply:
            super().send(*args, **rest)
            return ApiReply(504 if len(self.calls) == 1 else 409, {}, {"message": "try again"})

    fake = Slow()
    with pytest.raises(Conflict, match="deployments x was changed by somebody else"):
        _cluster(fake).apply(ObjectKind.DEPLOYMENT, {"metadata": {"name": "x"}, "spec": {"replicas": 1}})
    assert [call.method for call in fake.calls] == ["PATCH", "PATCH"]


def test_deleting_what_is_gone_or_was_replaced_does_nothing() -> None:
    fake = FakeCluster()
    cluster = _cluster(fake)
    cluster.delete(ObjectKind.JOB, "job", "uid-9")
    cluster.create(ObjectKind.JOB, JOB)
    cluster.delete(ObjectKind.JOB, "job", "uid-of-before")
    assert list(fake.objects(ObjectKind.JOB)) == ["job"]


@pytest.mark.parametrize(
    ("status", "message", "error", "code", "text"),
    [
        (403, "exceeded quota: x", QuotaError, ExitCode.OUTSIDE, "create jobs job: exceeded quota"),
        (403, "no right", UserError, ExitCode.USER, "compare the controller's Role"),
        (422, "spec: too long", UserError, ExitCode.USER, "create jobs job: spec: too long"),
        (418, "tea", OutsideError, ExitCode.OUTSIDE, "create jobs job: 418 tea"),
    ],
)
def test_a_refusal_is_one_line_with_its_exit_code(
    status: int, message: str, error: type[Exception], code: ExitCode, text: str
) -> None:
    class Refusing(FakeCluster):
        def send(self, *args: Any, **rest: Any) -> ApiReply:
            return ApiReply(status, {}, {"message": message})

    with pytest.raises(error, match=text) as caught:
        _cluster(Refusing()).create(ObjectKind.JOB, JOB)
    assert caught.value.exit_code is code  # type: ignore[attr-defined]


@pytest.mark.fault(14)
def test_nothing_is_written_once_the_lease_may_be_lost() -> None:
    def lost() -> None:
        raise LeaseLost

    fake = FakeCluster()
    cluster = ClusterClient(fake, rng=Random(0), sleep=fake.advance, guard=lost)
    cluster.list(ObjectKind.JOB, "")
    writes: list[Callable[[], object]] = [
        lambda: cluster.create(ObjectKind.JOB, JOB),
        lambda: cluster.apply(ObjectKind.JOB, JOB),
        lambda: cluster.replace(ObjectKind.JOB, JOB),
        lambda: cluster.delete(ObjectKind.JOB, "job", "uid"),
    ]
    for write in writes:
        with pytest.raises(LeaseLost):
            write()
    assert [call.method for call in fake.calls] == ["GET"]


@pytest.mark.fault(15)
def test_an_expired_watch_raises() -> None:
    fake = FakeCluster()
    fake.watch_fault = NoReply("watch: 410")
    with pytest.raises(NoReply):
        list(_cluster(fake).changes(ObjectKind.JOB, "", 10))


def _cluster(fake: FakeCluster) -> ClusterClient:
    return ClusterClient(fake, rng=Random(0), sleep=fake.advance)

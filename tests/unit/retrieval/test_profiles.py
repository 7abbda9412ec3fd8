import pytest

from retrieval.profiles import PROFILES, BuildEstimate, ProfileName, estimate

WIKIPEDIA = 21_015_324


def of_wikipedia(name: ProfileName) -> BuildEstimate:
    return estimate(name, rows=WIKIPEDIA, dimensions=768, corpus_bytes=14 * 10**9, passages_per_second=100.0)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        (ProfileName.FLAT, 64.6),
        (ProfileName.COMPACT, 18.5),
        (ProfileName.BALANCED, 16.3),
        (ProfileName.GPU, 32.3),
    ],
)
def test_wikipedia_needs_the_sizes_that_the_docs_say(name: ProfileName, gigabytes: float) -> None:
    costs = of_wikipedia(name)
    assert costs.index_bytes / 1e9 == pytest.approx(gigabytes, rel=0.04)
    assert costs.encode_seconds == pytest.approx(210_153, rel=0.01)
    assert costs.build_disk > costs.index_bytes + 14 * 10**9 - 1


def test_the_compact_profile_fits_a_16_gb_machine() -> None:
    costs = of_wikipedia(ProfileName.COMPACT)
    assert costs.serve_memory < 16e9
    assert costs.build_memory < 32e9


def test_the_gate_demands_what_the_docs_promise() -> None:
    assert {name: profile.recall for name, profile in PROFILES.items()} == {
        ProfileName.BM25: 1.0,
        ProfileName.FLAT: 1.0,
        ProfileName.COMPACT: 0.99,
        ProfileName.BALANCED: 0.98,
        ProfileName.GPU: 0.999,
    }

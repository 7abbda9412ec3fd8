from tests.judges import judge_over, pack

__all__ = ["judge_over", "pack"]

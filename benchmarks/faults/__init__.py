"""Every fault of the reliability page, injected and counted by the tests that carry `pytest.mark.fault`."""

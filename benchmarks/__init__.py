"""Long measurements and makers: run by `make bench-...`, never by the tests."""

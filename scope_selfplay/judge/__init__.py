"""The frozen Judge: gates tasks, writes rubrics, grades answers, compares candidates."""

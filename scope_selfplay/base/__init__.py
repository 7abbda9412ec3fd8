"""What everything stands on: values, keys, errors, texts that others wrote, intervals; and how a command speaks.

Pure, but for `machine` (memory, processors, locks) and `terminal`.
"""

"""Is the self-play still healthy? Signals per iteration, each with the bounds outside of which it warns.

    with RunReader(path) as reader:
        for checkup in examine(reader):
            for signal in checkup.signals:
                print(checkup.iteration, signal.title, signal.value, signal.warning)

`tasks` (near duplicates, drift of topics, whether the Challenger's searches are needed) - `costs` (judge calls, tokens,
GPU-hours) - `checkup` (everything together, with bounds). All from records; no judge is called.
"""

"""Is the self-play still healthy? Signals per iteration, each with the bounds outside of which it warns.

    with RunReader(path) as reader:
        for checkup in examine(reader):
            for found in checkup.warnings:
                print(found.iteration, found.text, [each.task_id for each in found.behind])

`bounds` is the table of signals. What measures them: `tasks` (near duplicates, whether the Challenger's searches are
needed) - `variety` (the commonest pattern of tasks) - `held_out` (tasks and answers of every Solver) - `gains` (what a
Solver gained, on which kind of criteria) - `answers` (repetition, length) - `suspects` (texts that look like attacks) -
`costs` (judge calls, tokens, GPU-hours). `checkup` puts them together. All from records; no judge is called.
"""

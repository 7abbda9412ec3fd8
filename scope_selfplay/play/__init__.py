"""A person in the place of a policy or a judge: `scope play`.

`writing` (what a person types becomes a turn; pure) - `console` (a terminal with line editing, or a file of replies) -
`person` (a person as a `PolicyModel`) - `session`, `solving`, `challenging` (either role, over the run's own
episodes) - `questions` (what a judge was asked, put to a person), `judging`, `comparing` (blind) - `cli`.
"""

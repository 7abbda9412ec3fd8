"""What a run has made, shown in a terminal and on paper; the web page (`viewer`) shows the same numbers.

`overview` (the numbers of a run, from its folder alone) - `summary` (`summary.json`, and what `scope run` prints at its
end) - `text` (`scope tasks ls`, `show` and `stats`) - `comparing` (`scope tasks diff`) - `html_report` (`scope report`:
one HTML file) - `charts` (SVG) - `cli` (the commands).

In a terminal: colours, and text wrapped to its width. In a pipe, over `kubectl exec` or into a file: one record a
line, tabs between cells, nothing cut off. With --json: JSON.
"""

"""Prompt packs: one Markdown file a prompt, checked before a run, rendered for every role.

Pure, but for `folder` (reads packs) and `commands`.
"""

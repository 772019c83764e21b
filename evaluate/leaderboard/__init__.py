"""A leaderboard: a folder of entries, ranked, shown as a page, and scored again.

`entries` reads what strangers hand in and `add` makes it of scores; `ranking` is the table, `page`
shows it; `reverify` scores an entry again; `published_scores` are the paper's rows.
"""

"""The report of an evaluation: one HTML page that needs no other file.

`report` puts the page together from `header`, `tables` and `pictures`; `html` and `svg` are what
they draw with, `labels` the words.
"""

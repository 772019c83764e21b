"""Scored entries of many: folders, ranking, page, and scoring again."""

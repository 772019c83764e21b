"""Scoring encoders: metrics, submissions, reports and a leaderboard."""

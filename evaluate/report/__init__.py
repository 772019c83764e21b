"""The report of a scored submission, as a page of HTML."""

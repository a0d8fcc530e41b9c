"""``report``: tables, figures and the page; all that is said of a method."""

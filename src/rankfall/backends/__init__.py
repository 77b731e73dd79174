"""Plan, start and stop slots. A backend never decides, and never opens what it describes."""

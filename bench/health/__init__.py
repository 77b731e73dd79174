"""What node health costs, how soon it acts, and whether it does after a long hard time."""

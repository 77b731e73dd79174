"""What an agent of node health costs and how soon it tells."""

"""Parts of a bed that only some tests need: each is a context manager on a bed that is up, and leaves nothing."""

"""Watches: all matching objects and every later change; public is ``watcher.watch``."""

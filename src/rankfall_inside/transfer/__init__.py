"""Transfers a tree of files between two sides that run this package.

Both refuse names and links that lead out of the tree.
"""

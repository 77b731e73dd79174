"""Transfers a tree of files between two sides that both run this package.

Used on the user's machine, in the copy pod, and in a slot that unpacks its code. Both sides refuse names and
links that lead out of the tree. Imports nothing outside this package.
"""

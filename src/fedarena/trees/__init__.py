"""Boosted trees: bins, gains, objectives, sums in fixed point, and the growth of a tree from sums of gradients.

Both sides of the package use this one code: `algorithms` for clients that hold rows (histboost), `vertical` for parties that
hold columns. It knows no clients, no messages and no files.
"""

"""A program that runs is watched: what happens becomes events, and each tensor knows the line that made its dtype."""

"""The judge: a model that decides whether a run may continue."""

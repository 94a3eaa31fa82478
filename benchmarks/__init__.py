"""Speed of the environments and of the training loop; one command per figure, never a timed test."""

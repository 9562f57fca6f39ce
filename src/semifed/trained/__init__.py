"""After training: a run's model as something to use. Predict, export with a card, and choose what to label next."""

"""Hidden Markov models and Markov random fields."""

"""The objective F(θ, w): its contract, closed forms, batches of refits, folds that are runs of units."""

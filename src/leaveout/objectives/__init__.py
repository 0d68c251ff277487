"""F(θ, w): the contract, closed forms, batches of refits, folds that are runs of units."""

class OneFitSearchCV: pass

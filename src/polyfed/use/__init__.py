"""What leaves a run for the world: predictors, exports, their cards and bills of materials."""

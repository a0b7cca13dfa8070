"""Who runs them: engines, the round loop, and what keeps a run safe.

Nothing is imported here: the programs that `polyfed deploy` starts on servers and sites need no engine and no torch.
"""

"""Privacy with a budget: noise per example (dp-sgd) or per client (user); or a paper's noise, which guarantees nothing.

A kind of privacy says what it refuses, changes how a client trains (`fits`), what leaves it (`leave`) or how the server
averages (`averaged`), and what a round costs (`cost`). The engine calls these and keeps the accounts.
"""

from polyfed.threats.privacy import dp_sgd, nominal, user
from polyfed.threats.privacy.base import SECRET, Privacy, Setting, privacies, privacy

__all__ = ["SECRET", "Privacy", "Setting", "dp_sgd", "nominal", "privacies", "privacy", "user"]

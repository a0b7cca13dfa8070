"""The privacy on which a site insists, whatever the server's config says: `privacy` in its site.yaml.

It is checked before any work. Noise and steps are counted at the site, over all runs that it has taken part in: a
server cannot begin a second run to get a second budget.
"""

from polyfed.config import Config
from polyfed.engine.flower.deploy.layout import Site
from polyfed.engine.ledger import SPENT, read_spent
from polyfed.errors import UsageError
from polyfed.files import Place
from polyfed.threats.accountant import Entry, epsilon_of
from polyfed.threats.privacy.dp_sgd import DPSGD

ACCOUNT = ".privacy.json"  # how the names of a site's accounts end: one for each run


def check_privacy(site: Site, config: Config) -> None:
    """Refuse a run that promises this site's samples less than its own settings ask for."""
    least, asked = site.privacy, config.privacy
    if least is None:
        return
    wants = f"site '{site.name}' insists on privacy=dp-sgd with epsilon={least.epsilon:g}, delta={least.delta:g}"
    if not isinstance(asked, DPSGD):
        raise UsageError(f"{wants}, and the run has privacy={asked.name}")
    if asked.epsilon is not None and asked.epsilon > least.epsilon:
        raise UsageError(f"{wants}, and the run has privacy.epsilon={asked.epsilon:g}")
    if asked.delta > least.delta:
        raise UsageError(f"{wants}, and the run has privacy.delta={asked.delta:g}")
    for key in ("reports", "classes_known"):
        if getattr(asked, key) and not getattr(least, key):
            raise UsageError(f"{wants}, and the run has privacy.{key}=true, which the site's settings do not allow")


def check_total(site: Site, cost: Entry | None) -> None:
    """Refuse a job with which all runs together would cost this site more than it allows."""
    least = site.privacy
    if least is None or cost is None:
        return
    memory = Place.of(site.memory)
    accounts = [memory / name for name in memory.names() if name.endswith(ACCOUNT)]
    histories = [history for account in accounts for history in read_spent(account).values()]
    spent = [entry for history in histories for entry in history]
    if epsilon_of([*spent, list(cost)], least.delta, "rdp") > least.epsilon:
        raise UsageError(f"{SPENT}: with one more round all runs would exceed epsilon={least.epsilon:g} at this site")

"""The uploaded models of the last round as points on a plane, for a picture of clusters."""

from collections.abc import Sequence

from polyfed.methods.base import Server, Upload
from polyfed.parts.cluster import plane

AFFORDABLE = 10**11  # products of numbers that the picture may cost


def record_plane(server: Server, uploads: Sequence[Upload]) -> None:
    """Record the last round's uploaded models as points on their first two principal components."""
    rows = [u.message["w"] for u in uploads if "w" in u.message]
    if len(rows) == len(uploads) > 2 and len(rows) ** 2 * rows[0].numel() <= AFFORDABLE:
        places, shares = plane([row.reshape(-1) for row in rows])
        server.record("plane", [[u.client, *place] for u, place in zip(uploads, places.tolist(), strict=True)])
        server.record("plane_shares", shares)

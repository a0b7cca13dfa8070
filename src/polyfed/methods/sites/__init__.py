"""Where a method's hooks run: the client with its data and memory, the server with its shared model and state."""

from polyfed.methods.sites.client import Client, PrivateFits
from polyfed.methods.sites.server import Known, Server, Upload
from polyfed.methods.sites.site import Site, Task

__all__ = ["Client", "Known", "PrivateFits", "Server", "Site", "Task", "Upload"]

"""Between real sites: a SuperLink, one SuperNode per site with its own data, TLS, node authentication."""

"""polyfed: federated learning that ends in one good model per client."""

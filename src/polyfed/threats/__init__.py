"""What can go wrong: attacks, defences, privacy, audit; methods never import it."""

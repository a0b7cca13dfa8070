"""`python -m polyfed.cli` is `polyfed`."""

from polyfed.cli import main

if __name__ == "__main__":
    main()

"""`python -m jzero`: the command line, where no script is installed."""

from jzero.cli.app import main

if __name__ == "__main__":
    main()

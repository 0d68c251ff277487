"""`python -m leaveout`: the command line."""

from .extensions.cli import app

if __name__ == "__main__":
    app(prog_name="leaveout")

"""What holds for every test: generated examples are the same in every run, and slow machines are not failures."""

from hypothesis import settings

settings.load_profile(
    "ci"
)  # Hypothesis' own: derandomized, no deadline; `--hypothesis-profile=default` looks further

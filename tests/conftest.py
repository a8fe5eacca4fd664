"""Settings of every test: examples are generated alike in every run, without deadlines."""

from hypothesis import settings

settings.load_profile(
    "ci"
)  # Hypothesis' own: derandomized, no deadline; `--hypothesis-profile=default` looks further
# for an emulated processor, which is fifty times slower
settings.register_profile("emulated", settings.get_profile("ci"), max_examples=10)

"""Settings of every test: examples are generated alike in every run, without deadlines."""

from hypothesis import settings

# Hypothesis' own: derandomized, no deadline; `--hypothesis-profile=default` looks further
settings.load_profile("ci")
# for an emulated processor, which is fifty times slower
settings.register_profile("emulated", settings.get_profile("ci"), max_examples=10)
